"""The tables of money: prices, usage records, the double-entry ledger and invoices. Each row is written once.

Triggers in the migration protect what may never change; the CHECK constraints here pair the assertions in the code.
Text ids name tenants, plans and keys, which belong to the control plane: no foreign key crosses that line.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

Instant = sa.DateTime(timezone=True)


class PriceVersion(SQLModel, table=True):
    """What one plan charges from an instant on, until a later version of the same plan takes over."""

    __tablename__ = "price_versions"
    __table_args__ = (
        sa.UniqueConstraint("plan_id", "effective_from"),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_page_second_nanos >= 0",
            name="prices_not_negative",
        ),
    )

    id: str = Field(primary_key=True)
    plan_id: str
    input_nanos: int = Field(sa_type=sa.BigInteger)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger)
    output_nanos: int = Field(sa_type=sa.BigInteger)
    kv_page_second_nanos: int = Field(sa_type=sa.BigInteger)
    effective_from: datetime = Field(sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)


class PlanAssignment(SQLModel, table=True):
    """Which plan prices a tenant's usage from an instant on, until a later assignment of the same tenant."""

    __tablename__ = "plan_assignments"

    tenant_id: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    plan_id: str
    created_at: datetime = Field(sa_type=Instant)


class LedgerAccount(SQLModel, table=True):
    """Where value is held. ``revenue`` and ``rounding`` belong to the platform; the others exist once per tenant."""

    __tablename__ = "accounts"
    __table_args__ = (
        sa.UniqueConstraint("kind", "tenant_id", postgresql_nulls_not_distinct=True),
        sa.CheckConstraint("kind IN ('usage_unbilled', 'receivable', 'revenue', 'rounding')", name="kind_known"),
        sa.CheckConstraint("(tenant_id IS NULL) = (kind IN ('revenue', 'rounding'))", name="owner_fits_kind"),
    )

    id: str = Field(primary_key=True)
    kind: str
    tenant_id: str | None = None


class LedgerTransfer(SQLModel, table=True):
    """One movement of value, for one request or one invoice, at most once for each."""

    __tablename__ = "transfers"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('usage', 'invoice')", name="kind_known"),
        sa.CheckConstraint(
            "(kind = 'usage') = (request_id IS NOT NULL) AND (kind = 'invoice') = (invoice_id IS NOT NULL)",
            name="cause_fits_kind",
        ),
    )

    id: str = Field(primary_key=True)
    kind: str
    request_id: str | None = Field(default=None, unique=True)
    invoice_id: str | None = Field(default=None, unique=True, foreign_key="invoices.id")
    created_at: datetime = Field(sa_type=Instant)


class LedgerEntry(SQLModel, table=True):
    """One leg of a transfer: positive is a debit, negative a credit, and the legs of a transfer sum to zero."""

    __tablename__ = "entries"

    transfer_id: str = Field(primary_key=True, foreign_key="transfers.id")
    account_id: str = Field(primary_key=True, foreign_key="accounts.id", index=True)
    amount_nanos: int = Field(sa_type=sa.BigInteger)


class UsageRecord(SQLModel, table=True):
    """What one request used and what it costs. For an estimated request, the difference to the exact event is a second
    record whose id ends in ``:rest``. Only ``invoice_id`` changes, once, from NULL to the invoice.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens",
            name="quantities_possible",
        ),
        sa.CheckConstraint(
            "aborted_prefill_tokens BETWEEN 0 AND input_tokens", name="aborted_prefill_is_part_of_input"
        ),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0"
            " AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos",
            name="amount_is_sum_of_parts",
        ),
        sa.CheckConstraint(
            "first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0",
            name="durations_possible",
        ),
        sa.CheckConstraint("NOT estimated OR outcome = 'gateway_gone'", name="estimate_has_cause"),
        sa.CheckConstraint("adapter_tier IN ('slot', 'memory', 'disk', 'store')", name="tier_known"),
        sa.Index("ix_usage_records_tenant_id_settled_at", "tenant_id", "settled_at"),
        sa.Index(
            "ix_usage_records_unbilled", "tenant_id", "settled_at", postgresql_where=sa.text("invoice_id IS NULL")
        ),
    )

    request_id: str = Field(primary_key=True)
    tenant_id: str
    key_id: str
    base_model: str
    adapter_id: str | None = None
    revision_id: str | None = None
    replica_id: str
    outcome: str
    started_at: datetime = Field(sa_type=Instant)
    settled_at: datetime = Field(sa_type=Instant)
    input_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"server_default": sa.text("0")})
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int = Field(sa_type=sa.BigInteger)
    first_token_ms: int | None = Field(default=None, sa_type=sa.BigInteger)
    duration_ms: int = Field(sa_type=sa.BigInteger)
    adapter_tier: str | None = None
    adapter_load_ms: int = Field(sa_type=sa.BigInteger)
    stall_ms: int = Field(sa_type=sa.BigInteger)
    estimated: bool
    price_version_id: str = Field(foreign_key="price_versions.id")
    input_nanos: int = Field(sa_type=sa.BigInteger)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger)
    output_nanos: int = Field(sa_type=sa.BigInteger)
    kv_nanos: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    invoice_id: str | None = Field(default=None, index=True)


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
    """One priced quantity of an invoice: tokens of a kind, or KV page-milliseconds, of one model at one price."""

    __tablename__ = "invoice_lines"
    __table_args__ = (
        sa.CheckConstraint(
            "kind IN ('input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds')", name="kind_known"
        ),
        sa.CheckConstraint(
            "quantity > 0 AND request_count > 0 AND unit_price_nanos >= 0 AND amount_nanos >= 0",
            name="counts_something",
        ),
        sa.CheckConstraint(
            "kind = 'kv_page_seconds' OR amount_nanos = quantity::numeric * unit_price_nanos",
            name="amount_is_quantity_times_price",
        ),
        # Each record truncates its own share below one nanodollar, so the sum lies less than one a record below. A
        # request has two at most: its estimate, and the rest.
        sa.CheckConstraint(
            "kind <> 'kv_page_seconds' OR amount_nanos::numeric * 1000 BETWEEN"
            " quantity::numeric * unit_price_nanos - 1998 * request_count::numeric"
            " AND quantity::numeric * unit_price_nanos",
            name="kv_amount_is_truncated_product",
        ),
        sa.UniqueConstraint("invoice_id", "position"),
        sa.CheckConstraint("abs(amount_cents::numeric * 10000000 - amount_nanos) <= 5000000", name="cents_are_nearest"),
    )

    id: str = Field(primary_key=True)
    invoice_id: str = Field(foreign_key="invoices.id")
    position: int
    kind: str
    base_model: str
    adapter_id: str | None = None
    price_version_id: str = Field(foreign_key="price_versions.id")
    quantity: int = Field(sa_type=sa.BigInteger)
    unit_price_nanos: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    amount_cents: int = Field(sa_type=sa.BigInteger)
    request_count: int = Field(sa_type=sa.BigInteger)
