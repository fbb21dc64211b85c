"""The tables of what happens to invoices after they are final. Rows are written once; the database checks each event
against the one before it, so no sequence of events pays, credits or ends an invoice wrongly.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from billing.models import Instant


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
