"""Makes invoice lines count requests: an estimated request may have two records, and each truncates the cost of its
pages.

Revision: 2026_11_20_1000, after 2026_11_20_0910.
"""

from alembic import op

revision = "2026_11_20_1000"
down_revision = "2026_11_20_0910"
branch_labels = None
depends_on = None

_NAME = "ck_invoice_lines_ck_invoice_lines_kv_amount_is_truncate_55d7"  # shortened to the length that Postgres allows


def upgrade() -> None:
    _within(1998)


def downgrade() -> None:
    _within(999)


def _within(below: int) -> None:
    op.drop_constraint(op.f(_NAME), "invoice_lines")
    op.create_check_constraint(
        op.f(_NAME),
        "invoice_lines",
        "kind <> 'kv_page_seconds' OR amount_nanos::numeric * 1000 BETWEEN"
        f" quantity::numeric * unit_price_nanos - {below} * request_count::numeric"
        " AND quantity::numeric * unit_price_nanos",
    )
