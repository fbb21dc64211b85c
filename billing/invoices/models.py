"""The tables of invoices. The lines of an invoice are inserted before it, in one transaction; triggers refuse
a line of an invoice that exists, and check at commit that lines and invoice agree.
"""

from datetime import datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from billing.models import Instant


class Invoice(SQLModel, table=True):
    """What one tenant owes for one period. Final once it exists; a correction is a separate document."""

    __tablename__ = "invoices"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "period_end"),
        sa.CheckConstraint("number > 0", name="number_positive"),
        sa.CheckConstraint("period_start < period_end", name="period_has_length"),
        sa.CheckConstraint("status = 'finalised'", name="status_known"),
        sa.CheckConstraint("currency = 'usd'", name="currency_known"),
        sa.CheckConstraint("total_cents >= 0 AND amount_nanos >= 0", name="totals_not_negative"),
    )

    id: str = Field(primary_key=True)
    number: int = Field(unique=True, sa_type=sa.BigInteger)
    tenant_id: str
    period_start: datetime = Field(sa_type=Instant)
    period_end: datetime = Field(sa_type=Instant)
    status: str
    currency: str
    total_cents: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)


class InvoiceLine(SQLModel, table=True):
    """One priced quantity of an invoice, of one model at one price: ``quantity`` units of ``unit`` at
    ``unit_price_nanos`` each. ``late_for`` is the start of the month in which late usage settled.

    Lines made before units were named count KV cache in page-milliseconds and uncached input as ``input_tokens``.
    """

    __tablename__ = "invoice_lines"
    __table_args__ = (
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint(
            "kind IN ('input_tokens', 'uncached_input_tokens', 'cached_input_tokens', 'output_tokens',"
            " 'kv_page_seconds', 'adapter_storage', 'pinned_slots', 'cold_loads', 'base_fee', 'proration', 'discount',"
            " 'coupon', 'commitment', 'carried')",
            name="kind_known",
        ),
        sa.CheckConstraint(
            "unit IN ('token', 'page_second', 'page_millisecond', 'package', 'gb_hour', 'slot_hour', 'load', 'amount')",
            name="unit_known",
        ),
        sa.CheckConstraint(
            "quantity > 0 AND request_count >= 0 AND (unit_price_nanos >= 0 AND amount_nanos >= 0"
            " OR kind IN ('proration', 'discount', 'coupon', 'carried'))",
            name="counts_something",
        ),
        sa.CheckConstraint(
            "unit IN ('page_second', 'page_millisecond', 'gb_hour', 'slot_hour')"
            " OR amount_nanos = quantity * unit_price_nanos",
            name="amount_is_quantity_times_price",
        ),
        sa.CheckConstraint("price_version_id IS NOT NULL OR unit = 'amount'", name="usage_has_a_price"),
        # Each record truncates its own share of the page time below one nanodollar.
        sa.CheckConstraint(
            "amount_nanos * 1000::numeric <="
            " quantity * unit_price_nanos * CASE unit WHEN 'page_millisecond' THEN 1 ELSE 1000 END",
            name="kv_amount_is_truncated_product",
        ),
        sa.CheckConstraint("abs(amount_cents::numeric * 10000000 - amount_nanos) < 10000000", name="cents_within_one"),
        sa.UniqueConstraint("invoice_id", "position"),
    )

    id: str = Field(primary_key=True)
    invoice_id: str
    position: int
    kind: str
    base_model: str | None = None
    rank_class: int | None = None
    adapter_id: str | None = None
    adapter_name: str | None = None
    price_version_id: str | None = Field(default=None, foreign_key="price_versions.id")
    late_for: datetime | None = Field(default=None, sa_type=Instant)
    unit: str
    quantity: Decimal = Field(sa_type=sa.Numeric(38, 9))
    unit_price_nanos: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    amount_cents: int = Field(sa_type=sa.BigInteger)
    request_count: int | None = Field(default=None, sa_type=sa.BigInteger)
    tier: int | None = None
    used_units: Decimal | None = Field(default=None, sa_type=sa.Numeric(38, 9))
    description: str | None = None
    source_id: str | None = None
    covers_from: datetime | None = Field(default=None, sa_type=Instant)
    covers_until: datetime | None = Field(default=None, sa_type=Instant)
