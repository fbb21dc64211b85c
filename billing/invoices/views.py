"""The values that show one document whole: an invoice with its parts and what happened to it, and credit notes."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.invoices.statuses import EventKind, PaymentSource
from billing.tax.calculation import TaxLine
from billing.tax.parties import Buyer, Seller
from billing.views import InvoiceLineView, InvoiceView
from core import fields
from core.fields import about

CreditDestination = Literal["refund", "balance", "amount_due"]


class AppliedCredit(msgspec.Struct, frozen=True, kw_only=True):
    """A promotional credit on an invoice, with its share of the rounded net amount."""

    lot_id: Annotated[str, fields.LOT_ID]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    amount_cents: Annotated[int, fields.AMOUNT_CENTS]


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """A payment of an invoice. ``surplus_cents`` was paid beyond the amount due and is on the customer's balance; above
    zero, somebody should look at it.
    """

    source: Annotated[PaymentSource, about("stripe, manual, credits or balance.")]
    reference: Annotated[str | None, about("The payment's own id, unique at its source.")]
    amount_cents: Annotated[int, fields.AMOUNT_CENTS]
    surplus_cents: Annotated[int, about("Cents beyond the amount due, which went to the tenant's balance.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class CreditNoteView(msgspec.Struct, frozen=True, kw_only=True):
    """A credit note: ``due_cents`` of its total lowered the amount due, ``balance_cents`` went to the customer's
    balance and ``refund_cents`` are paid back.
    """

    id: Annotated[str, fields.ID]
    number: Annotated[str, fields.NUMBER_WITHOUT_GAPS]
    invoice_id: Annotated[str, fields.INVOICE_ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    line_id: Annotated[str | None, fields.LINE_ID]
    net_cents: Annotated[int, fields.NET_CENTS]
    tax_cents: Annotated[int, fields.TAX_CENTS]
    total_cents: Annotated[int, fields.TOTAL_CENTS]
    destination: Annotated[
        CreditDestination,
        about("Where the part beyond the amount due went: amount_due and balance mean the tenant's balance."),
    ]
    due_cents: Annotated[int, about("Cents by which the amount due was lowered.")]
    balance_cents: Annotated[int, fields.BALANCE_CENTS]
    refund_cents: Annotated[int, about("Cents that are paid back.")]
    reason: Annotated[str, about("Why the note was issued.")]
    tax_lines: Annotated[tuple[TaxLine, ...], fields.TAX_LINES]
    created_at: Annotated[datetime, fields.CREATED_AT]


class InvoiceEventView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to an invoice. ``write_off`` is set where a void left nothing to the next invoice."""

    kind: Annotated[EventKind, about("What happened.")]
    amount_cents: Annotated[int, fields.AMOUNT_CENTS]
    reason: Annotated[str | None, about("Why, as an admin said; null where no reason was given.")]
    write_off: Annotated[bool, fields.WRITE_OFF]
    created_at: Annotated[datetime, fields.CREATED_AT]


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

    tenant_id: Annotated[str, fields.TENANT_ID]
    period_start: Annotated[datetime, fields.START]
    period_end: Annotated[datetime, fields.END]
    ended: Annotated[bool, about("Whether the period has ended and waits for late usage.")]
    finalizes_at: Annotated[datetime, about("When the invoice is made.")]
    currency: Annotated[str, fields.CURRENCY]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    net_cents: Annotated[int, fields.NET_CENTS]
    tax_cents: Annotated[int, fields.TAX_CENTS]
    total_cents: Annotated[int, fields.TOTAL_CENTS]
    lines: Annotated[tuple[InvoiceLineView, ...], fields.LINES]
    credits: Annotated[tuple[AppliedCredit, ...], fields.CREDITS]
    tax_lines: Annotated[tuple[TaxLine, ...], fields.TAX_LINES]
    warnings: Annotated[tuple[str, ...], about("What the invoice will lack of what invoices must show, with the fix.")]
