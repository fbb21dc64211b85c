"""The values that show invoices and credit notes to other packages: alone, with lines, and whole as documents."""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from billing.charges.lines import LineKind
from billing.invoices.statuses import EventKind, InvoiceStatus, PaymentSource
from billing.prices.quantities import LineUnit
from billing.tax.calculation import TaxLine
from billing.tax.parties import Buyer, Seller
from core import fields
from core.contracts.grants import ServiceTier
from core.fields import about

InvoiceKind = Literal["period", "threshold", "final", "supplementary"]
CreditDestination = Literal["refund", "balance", "amount_due"]


class InvoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice without its lines. ``amount_nanos`` is the exact sum of the lines; ``net_cents`` is charged for it
    after promotional credits, and ``total_cents`` is that and the tax. ``kind`` says why it was made: a period has
    ended, the tenant reached its threshold, left, or used something that was recorded after its last invoice.
    """

    id: Annotated[str, fields.ID]
    number: Annotated[str, fields.NUMBER_WITHOUT_GAPS]
    tenant_id: Annotated[str, fields.TENANT_ID]
    kind: Annotated[InvoiceKind, about("Why it was made: period, threshold, final or supplementary.")]
    period_start: Annotated[datetime, fields.START]
    period_end: Annotated[datetime, fields.END]
    status: Annotated[InvoiceStatus, about("open, paid, void or uncollectible.")]
    currency: Annotated[str, fields.CURRENCY]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    net_cents: Annotated[int, fields.NET_CENTS]
    tax_cents: Annotated[int, fields.TAX_CENTS]
    total_cents: Annotated[int, fields.TOTAL_CENTS]
    paid_cents: Annotated[int, about("Cents of the total that are paid.")]
    credited_cents: Annotated[int, about("Cents of the total that credit notes have taken back.")]
    amount_due_cents: Annotated[int, about("Cents still due; of an uncollectible invoice, cents written off.")]
    due_on: Annotated[date | None, about("Last day to pay, in UTC; null on invoices from before there were terms.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class InvoiceLineView(msgspec.Struct, frozen=True, kw_only=True):
    """``amount_nanos`` is ``quantity`` × ``unit_price_nanos``, cut below one nanodollar; page-seconds are cut in each
    request. ``amount_cents`` is the line's share of the rounded net. A line of a price tier is of all adapters
    together, and has no ``base_model`` if it is of all models. Of flex usage, ``unit_price_nanos`` is what the batch
    factor leaves of ``list_price_nanos``.

    Lines of the unit ``amount`` are no usage and have no model: fees, prorations, discounts, commitments and what is
    carried over. Lines of an earlier period, which cost less than a cent or whose invoice was voided, keep their unit
    and model; ``covers_from`` and ``covers_until`` are then the bounds of that period.
    """

    id: Annotated[str, fields.ID]
    kind: Annotated[LineKind, fields.LINE_KIND]
    base_model: Annotated[str | None, fields.BASE_MODEL]
    rank_class: Annotated[int | None, about("Rank class whose price it is; null for the price of all.")]
    adapter_id: Annotated[str | None, fields.ADAPTER_ID]
    adapter_name: Annotated[str | None, about("Name of the adapter when the invoice was made.")]
    price_version_id: Annotated[str | None, about("Id of the price version; null without one, as for discounts.")]
    late_for: Annotated[
        datetime | None, about("Start of the month in which late usage settled; null for usage of the period itself.")
    ]
    unit: Annotated[LineUnit, about("token, page_second, package, gb_hour, slot_hour, load, or amount (of money).")]
    quantity: Annotated[Decimal, fields.QUANTITY]
    unit_price_nanos: Annotated[int, fields.UNIT_PRICE_NANOS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    amount_cents: Annotated[int, fields.AMOUNT_CENTS]
    request_count: Annotated[int | None, about("Requests with any of it.")]
    tier: Annotated[int | None, about("Number of the price tier, from 1; null where the price has none.")]
    used_units: Annotated[Decimal | None, about("Units used, where quantity counts packages.")]
    description: Annotated[str | None, about("What the line is, where its kind does not say; null otherwise.")] = None
    source_id: Annotated[str | None, about("Id of the discount or coupon; null for other lines.")] = None
    covers_from: Annotated[
        datetime | None,
        about("Start of the time of a fee, a commitment or a line of an earlier period, or null."),
    ] = None
    covers_until: Annotated[datetime | None, about("End of the same time, exclusive, or null.")] = None
    tax_cents: Annotated[int, fields.TAX_CENTS] = 0
    service_tier: Annotated[ServiceTier | None, fields.SERVICE_TIER] = None
    list_price_nanos: Annotated[
        int | None, about("Price of a unit before the batch factor, in nanodollars; null without a batch discount.")
    ] = None
    batch_discount_nanos: Annotated[
        int, about("What the batch factor takes off the line's list price, in nanodollars; 0 without one.")
    ] = 0


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


class InvoiceDocument(InvoiceView, frozen=True, kw_only=True):
    """An invoice as it is printed, sent and explained, with its lines in print order and everything that happened to it
    since.
    """

    seller: Annotated[Seller | None, about("The operator as it was printed; null before its details were set.")]
    buyer: Annotated[Buyer | None, about("The tenant as it was printed; null before its details were set.")]
    lines: Annotated[tuple[InvoiceLineView, ...], fields.LINES]
    credits: Annotated[tuple[AppliedCredit, ...], fields.CREDITS]
    tax_lines: Annotated[tuple[TaxLine, ...], fields.TAX_LINES]
    payments: Annotated[tuple[PaymentView, ...], about("What was paid, oldest first.")]
    credit_notes: Annotated[tuple[CreditNoteView, ...], about("The invoice's credit notes, oldest first.")]
    events: Annotated[tuple[InvoiceEventView, ...], about("What happened to the invoice, in order.")]
    sha256: Annotated[str, about("Hash of the document and of all documents before it.")]


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
