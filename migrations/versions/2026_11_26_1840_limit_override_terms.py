"""Gives limits of a tenant's own a reason and an end.

Revision: 2026_11_26_1840, after 2026_11_26_1600.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_26_1840"
down_revision = "2026_11_26_1600"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "tenants",
        sa.Column("limit_override_terms", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
    )
    with_terms = sa.text("limit_override_terms <> '{}'::jsonb")
    op.create_index("ix_tenants_override_terms", "tenants", ["id"], postgresql_where=with_terms)


def downgrade() -> None:
    """Overrides with an end hold until they are changed."""
    op.drop_index("ix_tenants_override_terms", "tenants")
    op.drop_column("tenants", "limit_override_terms")
