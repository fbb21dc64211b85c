"""Finds by their time the transfers that change revenue and are no usage: adjustments, credit notes and voids.

Revision: 2026_11_25_1030, after 2026_11_25_1020.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_25_1030"
down_revision = "2026_11_25_1020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_transfers_revenue_created_at",
        "transfers",
        ["created_at"],
        postgresql_where=sa.text("kind IN ('adjustment', 'credit_note', 'void')"),
    )


def downgrade() -> None:
    op.drop_index("ix_transfers_revenue_created_at", "transfers")
