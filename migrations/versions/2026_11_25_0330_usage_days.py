"""Adds the sums of usage by day, made from those by hour: a month by the day is read from a 24th of the rows.

Revision: 2026_11_25_0330, after 2026_11_25_0320.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_25_0330"
down_revision = "2026_11_25_0320"
branch_labels = None
depends_on = None

_KEY = ("tenant_id", "day", "key_id", "base_model", "adapter_id", "rank_class", "price_version_id", "service_tier")
_SUMS = (
    "requests", "estimated_requests", "input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens",
    "kv_page_ms", "input_nanos", "cached_input_nanos", "output_nanos", "kv_nanos",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "usage_days",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("day", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("adapter_id", sa.String(), nullable=False),
        sa.Column("rank_class", sa.Integer(), nullable=False),
        sa.Column("price_version_id", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False) for name in _SUMS),
        sa.Column("service_tier", sa.String(), server_default="default", nullable=False),
        sa.PrimaryKeyConstraint(*_KEY, name="pk_usage_days"),
    )
    op.execute("LOCK TABLE usage_hours IN SHARE MODE")
    op.execute(
        f"INSERT INTO usage_days ({', '.join((*_KEY, *_SUMS))}) "
        "SELECT tenant_id, date_trunc('day', hour, 'UTC'), key_id, base_model, adapter_id, rank_class,"
        f" price_version_id, service_tier, {', '.join(f'sum({name})' for name in _SUMS)} "
        "FROM usage_hours GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"
    )


def downgrade() -> None:
    op.drop_table("usage_days")
