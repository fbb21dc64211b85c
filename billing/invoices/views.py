"""The values that show one document whole: an invoice with its parts and what happened to it, and credit notes."""

from datetime import datetime
from typing import Literal

import msgspec

from billing.invoices.statuses import EventKind, PaymentSource
from billing.tax.calculation import TaxLine
from billing.tax.parties import Buyer, Seller
from billing.views import InvoiceLineView, InvoiceView

CreditDestination = Literal["refund", "balance", "amount_due"]


class AppliedCredit(msgspec.Struct, frozen=True, kw_only=True):
    """A promotional credit on an invoice, with its share of the rounded net amount."""

    lot_id: str
    amount_nanos: int
    amount_cents: int


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """A payment of an invoice. ``surplus_cents`` was paid beyond the amount due and is on the customer's balance; above
    zero, somebody should look at it.
    """

    source: PaymentSource
    reference: str | None
    amount_cents: int
    surplus_cents: int
    created_at: datetime


class CreditNoteView(msgspec.Struct, frozen=True, kw_only=True):
    """A credit note: ``due_cents`` of its total lowered the amount due, ``balance_cents`` went to the customer's
    balance and ``refund_cents`` are paid back.
    """

    id: str
    number: str
    invoice_id: str
    tenant_id: str
    line_id: str | None
    net_cents: int
    tax_cents: int
    total_cents: int
    destination: CreditDestination
    due_cents: int
    balance_cents: int
    refund_cents: int
    reason: str
    tax_lines: tuple[TaxLine, ...]
    created_at: datetime


class InvoiceEventView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to an invoice. ``write_off`` is set where a void left nothing to the next invoice."""

    kind: EventKind
    amount_cents: int
    reason: str | None
    write_off: bool
    created_at: datetime


class InvoiceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice as it is printed, sent and explained, with everything that happened to it since."""

    invoice: InvoiceView
    seller: Seller | None
    buyer: Buyer | None
    lines: tuple[InvoiceLineView, ...]
    credits: tuple[AppliedCredit, ...]
    tax_lines: tuple[TaxLine, ...]
    payments: tuple[PaymentView, ...]
    credit_notes: tuple[CreditNoteView, ...]
    events: tuple[InvoiceEventView, ...]
    sha256: str


class DraftDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the invoice of a period would be now. It is computed at each request and stored nowhere; usage, prices, tax
    and credits may still change it. ``warnings`` say what the invoice will lack, such as the address of a party.
    """

    tenant_id: str
    period_start: datetime
    period_end: datetime
    ended: bool
    finalizes_at: datetime
    currency: str
    amount_nanos: int
    net_cents: int
    tax_cents: int
    total_cents: int
    lines: tuple[InvoiceLineView, ...]
    credits: tuple[AppliedCredit, ...]
    tax_lines: tuple[TaxLine, ...]
    warnings: tuple[str, ...]
