"""The tables of invoices. The parts of an invoice (lines, promotional credits, taxes) are inserted before it, in one
transaction; triggers refuse a part of an invoice that exists, and check that parts and invoice agree. ``Document`` has
its number and its seal.

What happens to an invoice later is its events and credit notes, written once too. The database checks each event
against the one before it, so no sequence of events pays, credits or ends an invoice wrongly.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class Invoice(SQLModel, table=True):
    """What one tenant owes for one period. Final once it exists; a correction is a separate document.

    ``amount_nanos`` is the exact sum of the lines, ``net_cents`` what is charged for it after promotional credits, and
    ``total_cents`` that and the tax. ``carried_nanos`` was left of small periods and waits for the next invoice.
    ``due_on`` is the last day to pay, in UTC; null on invoices from before there were terms.
    """

    __tablename__ = "invoices"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "period_end"),
        sa.CheckConstraint("kind IN ('period', 'threshold', 'final', 'supplementary')", name="kind_known"),
        sa.CheckConstraint("period_start < period_end", name="period_has_length"),
        sa.CheckConstraint("currency = 'usd'", name="currency_known"),
        sa.CheckConstraint("total_cents = net_cents + tax_cents", name="total_is_net_and_tax"),
        sa.CheckConstraint("carried_nanos BETWEEN -9999999 AND 9999999", name="less_than_a_cent_carried"),
    )

    id: str = Field(primary_key=True)
    tenant_id: str
    kind: str
    period_start: datetime = Field(sa_type=Instant)
    period_end: datetime = Field(sa_type=Instant)
    currency: str
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    carried_nanos: int = Field(sa_type=sa.BigInteger)
    net_cents: int = Field(sa_type=sa.BigInteger)
    tax_cents: int = Field(sa_type=sa.BigInteger)
    total_cents: int = Field(sa_type=sa.BigInteger)
    seller: dict[str, Any] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    buyer: dict[str, Any] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    created_at: datetime = Field(sa_type=Instant)
    due_on: date | None = None


class Document(SQLModel, table=True):
    """The number of an invoice or credit note and its link in the chain of all documents, in the order of positions.

    ``sha256`` covers the content's hash and the ``sha256`` of the document before, so no document can be changed
    without changing every later one. ``content_format`` names the form in which the content is hashed
    (``billing.invoices.numbering``).
    """

    __tablename__ = "documents"
    __table_args__ = (
        sa.UniqueConstraint("kind", "number"),
        sa.UniqueConstraint("document_id"),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name="kind_known"),
        sa.Index("ix_documents_tenant_id", "tenant_id"),
    )

    position: int = Field(primary_key=True, sa_type=sa.BigInteger)
    kind: str
    number: int = Field(sa_type=sa.BigInteger)
    document_id: str
    tenant_id: str
    content_format: int
    content_sha256: str
    previous_sha256: str
    sha256: str
    created_at: datetime = Field(sa_type=Instant)


class InvoiceCredit(SQLModel, table=True):
    """The part of a promotional credit that an invoice used, before tax."""

    __tablename__ = "invoice_credits"
    __table_args__ = (
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint("amount_nanos > 0 AND amount_cents >= 0", name="uses_something"),
    )

    invoice_id: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    lot_id: str
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    amount_cents: int = Field(sa_type=sa.BigInteger)


class InvoiceTaxLine(SQLModel, table=True):
    """One tax of an invoice, at the rate of the invoice's date."""

    __tablename__ = "invoice_tax_lines"
    __table_args__ = (
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint("rate_ppm BETWEEN 0 AND 1000000", name="rate_possible"),
    )

    invoice_id: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    name: str
    rate_ppm: int
    base_cents: int = Field(sa_type=sa.BigInteger)
    tax_cents: int = Field(sa_type=sa.BigInteger)
    note: str | None = None


class CarriedPeriod(SQLModel, table=True):
    """A period without a standing invoice: of less than one cent, or of a void one (``invoice_id``). Its lines are on
    the tenant's next invoice, the first that ends after ``billed_until``, the end of invoiced time when this was
    written.
    """

    __tablename__ = "carried_periods"
    __table_args__ = (
        sa.CheckConstraint(
            "invoice_id IS NOT NULL OR amount_nanos BETWEEN -9999999 AND 9999999 AND billed_until = period_end",
            name="less_than_a_cent",
        ),
        sa.UniqueConstraint("invoice_id"),
    )

    tenant_id: str = Field(primary_key=True)
    period_end: datetime = Field(primary_key=True, sa_type=Instant)
    period_start: datetime = Field(sa_type=Instant)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    lines: list[dict[str, Any]] = Field(sa_type=JSONB)  # DraftInvoiceLine
    created_at: datetime = Field(sa_type=Instant)
    invoice_id: str | None = Field(default=None, foreign_key="invoices.id")
    billed_until: datetime = Field(sa_type=Instant)


class InvoiceLine(SQLModel, table=True):
    """One priced quantity of an invoice, of one model at one price: ``quantity`` units of ``unit`` at
    ``unit_price_nanos`` each. ``late_for`` is the start of the month in which late usage settled.
    ``list_price_nanos`` is the price before the batch factor; null without a service tier or factor.

    Lines made before units were named count KV cache in page-milliseconds and uncached input as ``input_tokens``.
    """

    __tablename__ = "invoice_lines"
    __table_args__ = (
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint(
            "kind IN ('uncached_input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds',"
            " 'adapter_storage', 'pinned_slots', 'cold_loads', 'base_fee', 'proration', 'discount',"
            " 'coupon', 'commitment', 'carried')",
            name="kind_known",
        ),
        sa.CheckConstraint(
            "unit IN ('token', 'page_second', 'package', 'gb_hour', 'slot_hour', 'load', 'amount')",
            name="unit_known",
        ),
        sa.CheckConstraint(
            "quantity > 0 AND request_count >= 0 AND (unit_price_nanos >= 0 AND amount_nanos >= 0"
            " OR kind IN ('proration', 'discount', 'coupon', 'carried'))",
            name="counts_something",
        ),
        sa.CheckConstraint(
            "unit IN ('page_second', 'gb_hour', 'slot_hour') OR amount_nanos = quantity * unit_price_nanos",
            name="amount_is_quantity_times_price",
        ),
        sa.CheckConstraint("price_version_id IS NOT NULL OR unit = 'amount'", name="usage_has_a_price"),
        # Each record truncates its own share of the page time below one nanodollar.
        sa.CheckConstraint(
            "amount_nanos <= quantity * unit_price_nanos",
            name="kv_amount_is_truncated_product",
        ),
        sa.CheckConstraint("abs(amount_cents::numeric * 10000000 - amount_nanos) < 10000000", name="cents_within_one"),
        sa.CheckConstraint(
            "list_price_nanos IS NULL OR service_tier = 'flex' AND list_price_nanos >= unit_price_nanos",
            name="list_price_is_not_lower",
        ),
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
    service_tier: str | None = None
    list_price_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)


class InvoiceEvent(SQLModel, table=True):
    """One event of an invoice, and what the invoice is after it (``status`` to ``credited_cents``).

    ``amount_cents`` is by how much the event lowers the amount due; ``surplus_cents`` was paid beyond it and went to
    the customer's balance. ``reference`` is the payment's own id at its source. ``write_off`` is set where a void
    leaves nothing to the next invoice.
    """

    __tablename__ = "invoice_events"
    __table_args__ = (
        sa.UniqueConstraint("source", "reference"),
        sa.UniqueConstraint("credit_note_id"),
        sa.CheckConstraint(
            "kind IN ('finalized', 'open', 'payment', 'credit_note', 'void', 'uncollectible', 'recovered')",
            name="kind_known",
        ),
        sa.CheckConstraint("status IN ('finalized', 'open', 'paid', 'void', 'uncollectible')", name="status_known"),
        sa.CheckConstraint("source IN ('stripe', 'manual', 'credits', 'balance')", name="source_known"),
        sa.CheckConstraint("(kind = 'payment') = (source IS NOT NULL)", name="payment_has_source"),
        sa.CheckConstraint("(kind = 'credit_note') = (credit_note_id IS NOT NULL)", name="note_is_named"),
        sa.CheckConstraint("surplus_cents >= 0", name="surplus_not_negative"),
        sa.CheckConstraint("NOT write_off OR kind = 'void'", name="only_voids_write_off"),
        sa.Index("ix_invoice_events_status", "status", "invoice_id"),
    )

    invoice_id: str = Field(primary_key=True, foreign_key="invoices.id")
    seq: int = Field(primary_key=True)
    kind: str
    amount_cents: int = Field(sa_type=sa.BigInteger)
    surplus_cents: int = Field(default=0, sa_type=sa.BigInteger)
    source: str | None = None
    reference: str | None = None
    credit_note_id: str | None = Field(default=None, foreign_key="credit_notes.id")
    transfer_id: str | None = Field(default=None, unique=True, foreign_key="transfers.id")
    reason: str | None = None
    actor: str | None = None
    status: str
    amount_due_cents: int = Field(sa_type=sa.BigInteger)
    paid_cents: int = Field(sa_type=sa.BigInteger)
    credited_cents: int = Field(sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)
    write_off: bool = Field(default=False, sa_column_kwargs={"server_default": sa.false()})


class CreditNote(SQLModel, table=True):
    """A document that takes back a part of an invoice, with its tax: from the amount due, to the customer's balance, or
    as a refund. ``line_id`` is set where the note is for one line.
    """

    __tablename__ = "credit_notes"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "reference"),
        sa.CheckConstraint("total_cents = net_cents + tax_cents AND net_cents > 0", name="total_is_net_and_tax"),
        sa.CheckConstraint(
            "total_cents = due_cents + balance_cents + refund_cents"
            " AND due_cents >= 0 AND balance_cents >= 0 AND refund_cents >= 0",
            name="total_goes_somewhere",
        ),
        sa.CheckConstraint("destination IN ('amount_due', 'balance', 'refund')", name="destination_known"),
        sa.Index("ix_credit_notes_invoice_id", "invoice_id"),
    )

    id: str = Field(primary_key=True)
    invoice_id: str = Field(foreign_key="invoices.id")
    tenant_id: str
    line_id: str | None = Field(default=None, foreign_key="invoice_lines.id")
    net_cents: int = Field(sa_type=sa.BigInteger)
    tax_cents: int = Field(sa_type=sa.BigInteger)
    total_cents: int = Field(sa_type=sa.BigInteger)
    destination: str
    due_cents: int = Field(sa_type=sa.BigInteger)
    balance_cents: int = Field(sa_type=sa.BigInteger)
    refund_cents: int = Field(sa_type=sa.BigInteger)
    reason: str
    reference: str | None = None
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    created_at: datetime = Field(sa_type=Instant)


class CreditNoteTaxLine(SQLModel, table=True):
    """One tax of a credit note, at the invoice's rate. Inserted before the note."""

    __tablename__ = "credit_note_tax_lines"
    __table_args__ = (
        sa.ForeignKeyConstraint(["credit_note_id"], ["credit_notes.id"], deferrable=True, initially="DEFERRED"),
    )

    credit_note_id: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    name: str
    rate_ppm: int
    base_cents: int = Field(sa_type=sa.BigInteger)
    tax_cents: int = Field(sa_type=sa.BigInteger)
    note: str | None = None
