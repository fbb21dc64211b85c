"""Marks the prompt tokens of requests that were aborted before their first token: engines do not count them.

Revision: 2026_11_23_0900, after 2026_11_20_1000.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_23_0900"
down_revision = "2026_11_20_1000"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Until now, such prompts were not recorded at all. Workers of the version before insert without the column.
    op.add_column(
        "usage_records", sa.Column("aborted_prefill_tokens", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.create_check_constraint(
        op.f("ck_usage_records_aborted_prefill_is_part_of_input"),
        "usage_records",
        "aborted_prefill_tokens BETWEEN 0 AND input_tokens",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_usage_records_aborted_prefill_is_part_of_input"), "usage_records")
    op.drop_column("usage_records", "aborted_prefill_tokens")
