"""Adds the KV page-time that engines have measured to their counts. Counts from before contain none.

Revision: 2026_11_24_1030, after 2026_11_24_1020.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_24_1030"
down_revision = "2026_11_24_1020"
branch_labels = None
depends_on = None

_COLUMNS = ("kv_page_ms", "probe_kv_page_ms")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column(
            "engine_counts", sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        )
    op.create_check_constraint(
        op.f("ck_engine_counts_page_time_possible"), "engine_counts", "kv_page_ms >= 0 AND probe_kv_page_ms >= 0"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_engine_counts_page_time_possible"), "engine_counts")
    for name in _COLUMNS:
        op.drop_column("engine_counts", name)
