"""Adds the service tier to usage, its hourly sums and invoice lines, and the list price to lines of flex usage.

Existing usage is of the default tier: gateways of before had no other. Invoices stay as they are, since their hash
leaves out what is null. A downgrade fails where an hour has both tiers of the same usage.

Revision: 2026_11_25_0320, after 2026_11_24_1160.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_25_0320"
down_revision = "2026_11_24_1160"
branch_labels = None
depends_on = None

_HOUR_KEY = (
    "tenant_id", "hour", "late_from", "key_id", "base_model", "adapter_id", "revision_id", "rank_class",
    "price_version_id",
)  # fmt: skip
_KNOWN = "service_tier IN ('default', 'flex')"
_LIST_PRICE = "list_price_nanos IS NULL OR service_tier = 'flex' AND list_price_nanos >= unit_price_nanos"
_BEFORE = """
    request_id, tenant_id, key_id, base_model, adapter_id, revision_id, rank_class, replica_id, outcome, started_at,
    settled_at, late_from, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured,
    first_token_ms, duration_ms, adapter_tier, adapter_load_ms, stall_ms, estimated, price_version_id, input_nanos,
    cached_input_nanos, output_nanos, kv_nanos, amount_nanos, transfer_id
"""
_AMENDED = """
    r.request_id, r.tenant_id, r.key_id, r.base_model, r.adapter_id, r.revision_id, r.rank_class, r.replica_id,
    r.outcome, r.started_at, r.settled_at, r.late_from, a.input_tokens, a.cached_tokens, a.aborted_prefill_tokens,
    a.output_tokens, a.kv_page_ms, r.kv_measured, r.first_token_ms, r.duration_ms, r.adapter_tier, r.adapter_load_ms,
    r.stall_ms, r.estimated, r.price_version_id, a.input_nanos, a.cached_input_nanos, a.output_nanos, a.kv_nanos,
    a.amount_nanos, a.transfer_id
"""
_USAGE_NOW = """
CREATE OR REPLACE VIEW usage_now AS
SELECT {before} FROM usage_records r
WHERE NOT EXISTS (SELECT FROM usage_amendments a WHERE a.request_id = r.request_id)
UNION ALL
SELECT {amended} FROM usage_amendments a JOIN usage_records r ON r.request_id = a.request_id
WHERE a.part = 'replacement'
    AND NOT EXISTS (SELECT FROM usage_amendments b WHERE b.request_id = a.request_id AND b.position > a.position)
"""


def upgrade() -> None:
    op.execute("SET LOCAL statement_timeout = 0")
    for table in ("usage_records", "usage_hours"):
        op.add_column(table, sa.Column("service_tier", sa.String(), nullable=False, server_default="default"))
    op.create_check_constraint(op.f("ck_usage_records_service_tier_known"), "usage_records", _KNOWN)
    # A replaced view keeps its grants, and may only get further columns at its end.
    op.execute(_USAGE_NOW.format(before=f"{_BEFORE}, service_tier", amended=f"{_AMENDED}, r.service_tier"))
    op.drop_constraint("pk_usage_hours", "usage_hours")
    op.create_primary_key("pk_usage_hours", "usage_hours", [*_HOUR_KEY, "service_tier"])
    op.add_column("invoice_lines", sa.Column("service_tier", sa.String(), nullable=True))
    op.add_column("invoice_lines", sa.Column("list_price_nanos", sa.BigInteger(), nullable=True))
    op.create_check_constraint(op.f("ck_invoice_lines_list_price_is_not_lower"), "invoice_lines", _LIST_PRICE)


def downgrade() -> None:
    op.drop_constraint(op.f("ck_invoice_lines_list_price_is_not_lower"), "invoice_lines")
    for column in ("list_price_nanos", "service_tier"):
        op.drop_column("invoice_lines", column)
    op.drop_constraint("pk_usage_hours", "usage_hours")
    op.create_primary_key("pk_usage_hours", "usage_hours", list(_HOUR_KEY))
    # A view cannot lose a column; what was granted on it is granted again by the roles' set-up.
    op.execute("DROP VIEW usage_now")
    op.execute(_USAGE_NOW.format(before=_BEFORE, amended=_AMENDED))
    op.drop_constraint(op.f("ck_usage_records_service_tier_known"), "usage_records")
    for table in ("usage_hours", "usage_records"):
        op.drop_column(table, "service_tier")
