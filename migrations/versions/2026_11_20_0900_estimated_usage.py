"""Marks usage records that hold the last checkpoint of a request whose gateway died instead of an engine's final count.

Revision: 2026_11_20_0900, after 2026_11_20_0810.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_20_0900"
down_revision = "2026_11_20_0810"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # All existing records hold final counts.
    op.add_column("usage_records", sa.Column("estimated", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.alter_column("usage_records", "estimated", server_default=None)
    op.create_check_constraint(
        op.f("ck_usage_records_estimate_has_cause"), "usage_records", "NOT estimated OR outcome = 'gateway_gone'"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_usage_records_estimate_has_cause"), "usage_records")
    op.drop_column("usage_records", "estimated")
