"""Adds latencies and outcomes of requests to usage records, so that revisions can be compared.

Revision: 2026_11_20_0810, after 2026_11_20_0800.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_20_0810"
down_revision = "2026_11_20_0800"
branch_labels = None
depends_on = None

DURATIONS = ("duration_ms", "adapter_load_ms", "stall_ms")


def upgrade() -> None:
    op.add_column("usage_records", sa.Column("first_token_ms", sa.BigInteger()))
    op.add_column("usage_records", sa.Column("adapter_tier", sa.String()))
    for name in DURATIONS:
        # Existing records get the values of an event that omits these fields.
        op.add_column("usage_records", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        op.alter_column("usage_records", name, server_default=None)
    op.create_check_constraint(
        op.f("ck_usage_records_durations_possible"),
        "usage_records",
        "first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0",
    )
    op.create_check_constraint(
        op.f("ck_usage_records_tier_known"), "usage_records", "adapter_tier IN ('slot', 'memory', 'disk', 'store')"
    )


def downgrade() -> None:
    for name in ("tier_known", "durations_possible"):
        op.drop_constraint(op.f(f"ck_usage_records_{name}"), "usage_records")
    for name in ("first_token_ms", "adapter_tier", *DURATIONS):
        op.drop_column("usage_records", name)
