"""Lets single changes pass changes of many tenants in the outbox.

Revision: 2026_11_26_1910, after 2026_11_26_1840.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_26_1910"
down_revision = "2026_11_26_1840"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outbox", sa.Column("bulk", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("outbox", "bulk")
