"""Adds limits of single API keys, which apply in addition to the tenant's limits.

Revision: 2026_11_20_0910, after 2026_11_20_0900.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_20_0910"
down_revision = "2026_11_20_0900"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("limits", postgresql.JSONB(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("api_keys", "limits")
