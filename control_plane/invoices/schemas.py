"""Wire types of the invoices room. Answers are ``billing.invoices.views``, as far as they fit."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Literal

import msgspec

from billing.invoices.views import (
    AppliedCredit,
    CreditDestination,
    CreditNoteView,
    DraftDocument,
    InvoiceEventView,
    InvoiceLineView,
    InvoiceView,
    PaymentView,
)
from billing.tax.calculation import TaxLine
from billing.tax.parties import (
    PAYMENT_DAYS,
    Buyer,
    Country,
    Email,
    PaymentDays,
    PrintedText,
    Seller,
    TaxMode,
    VatId,
)
from billing.tax.rate_table import TaxRateView
from control_plane.tenants.schemas import Reason
from core import fields
from core.fields import about

Cents = Annotated[int, msgspec.Meta(ge=1, le=100_000_000_000)]
Reference = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern="^[!-~]+(?!\n)$")]
LegalName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
AddressLines = Annotated[tuple[PrintedText, ...], msgspec.Meta(max_length=8)]
TaxName = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
RatePpm = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
PlainId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[a-z0-9_]+(?!\n)$")]


class CloseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The exclusive end of the period: "now", by the database's clock, or an RFC 3339 instant with an offset. Without
    ``tenant_id`` all tenants are closed. A ``dry_run`` writes nothing.
    """

    until: Annotated[
        str,
        msgspec.Meta(extra_json_schema={"anyOf": [{"const": "now"}, {"format": "date-time"}]}),
        about("End of the period to invoice: an instant, or now."),
    ]
    tenant_id: Annotated[PlainId | None, fields.TENANT_ID] = None
    dry_run: Annotated[bool, fields.DRY_RUN] = False


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The invoices that this close created; empty when there was nothing to invoice. Those of a dry run have neither id
    nor number.
    """

    dry_run: Annotated[bool, fields.DRY_RUN]
    invoices: Annotated[Sequence[InvoiceView], about("The invoices that were made.")]


class InvoiceWithLines(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines in printing order, and everything that happened to it."""

    seller: Annotated[Seller | None, about("The operator as it was printed; null before its details were set.")]
    buyer: Annotated[Buyer | None, about("The tenant as it was printed; null before its details were set.")]
    lines: Annotated[Sequence[InvoiceLineView], fields.LINES]
    credits: Annotated[Sequence[AppliedCredit], fields.CREDITS]
    tax_lines: Annotated[Sequence[TaxLine], fields.TAX_LINES]
    payments: Annotated[Sequence[PaymentView], about("What was paid, oldest first.")]
    credit_notes: Annotated[Sequence[CreditNoteView], about("The invoice's credit notes, oldest first.")]
    events: Annotated[Sequence[InvoiceEventView], about("What happened to the invoice, in order.")]
    sha256: Annotated[str, about("Hash of the document and of all documents before it.")]


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant's drafts, oldest period first; the last one is of the running period."""

    drafts: Annotated[Sequence[DraftDocument], about("One draft a period, oldest first.")]


class NewCreditNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A credit note for ``amount_cents`` before tax, or for what is left of a line. What is still due is lowered first;
    the rest goes where ``to`` says.
    """

    reason: Annotated[Reason, about("Why the note is issued.")]
    to: Annotated[
        CreditDestination,
        about(
            "Where what is beyond the amount due goes: to the tenant's balance (amount_due, balance), or back (refund)."
        ),
    ] = "amount_due"
    amount_cents: Annotated[Cents | None, about("Cents to credit before tax; null for the rest of the line.")] = None
    line_id: Annotated[PlainId | None, fields.LINE_ID] = None


class NewPayment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payment that arrived outside of Stripe, such as a bank transfer. Its ``reference`` is unique."""

    amount_cents: Annotated[Cents, fields.AMOUNT_CENTS]
    reference: Annotated[Reference, about("The payment's own id, such as that of a bank transfer; it counts once.")]


class EndingReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why an invoice is ended."""

    reason: Annotated[Reason, about("Why the invoice is ended.")]


class InvoiceVoid(EndingReason, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why an invoice is voided. Its lines are on the tenant's next invoice, or with ``write_off`` on none."""

    write_off: Annotated[bool, fields.WRITE_OFF] = False


class CustomerBalance(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform owes the tenant. It pays the next invoices."""

    balance_cents: Annotated[int, fields.BALANCE_CENTS]
    currency: Annotated[Literal["usd"], fields.CURRENCY] = "usd"


class ProfileBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tenant's details on later invoices. Omitted fields are empty. A VAT id is checked by its form only."""

    legal_name: Annotated[LegalName, fields.LEGAL_NAME]
    address: Annotated[AddressLines, fields.POSTAL_ADDRESS] = ()
    country: Annotated[Country | None, fields.COUNTRY] = None
    email: Annotated[Email | None, fields.EMAIL] = None
    vat_id: Annotated[VatId | None, fields.VAT_ID] = None
    order_number: Annotated[PrintedText | None, fields.ORDER_NUMBER] = None


class AdminProfileBody(ProfileBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's details, with an exemption from tax by the date of the invoice (``exempt_until`` is exclusive) and its
    own days to pay.
    """

    exempt_from: Annotated[date | None, fields.EXEMPT_FROM] = None
    exempt_until: Annotated[date | None, fields.EXEMPT_UNTIL] = None
    payment_days: Annotated[PaymentDays | None, fields.PAYMENT_DAYS] = None


class SellerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's details on later invoices, whether it charges tax by its table of rates, and its terms."""

    legal_name: Annotated[LegalName, fields.LEGAL_NAME]
    address: Annotated[AddressLines, fields.POSTAL_ADDRESS] = ()
    country: Annotated[Country | None, fields.COUNTRY] = None
    vat_id: Annotated[VatId | None, fields.VAT_ID] = None
    tax: Annotated[TaxMode, fields.TAX] = "none"
    payment_days: Annotated[PaymentDays, fields.SELLERS_PAYMENT_DAYS] = PAYMENT_DAYS
    how_to_pay: Annotated[AddressLines, fields.HOW_TO_PAY] = ()


class TaxRates(msgspec.Struct, frozen=True, kw_only=True):
    """All tax rates, by country, tax and start."""

    rates: Annotated[Sequence[TaxRateView], about("The tax rates.")]


class NewTaxRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tax of a country from ``effective_from`` on, or from now on; a rate of 0 ends it."""

    country: Annotated[Country, about("Country as two capital letters (ISO 3166-1), such as DE.")]
    name: Annotated[TaxName, fields.NAME]
    rate_ppm: Annotated[RatePpm, fields.RATE_PPM]
    effective_from: Annotated[Annotated[datetime, msgspec.Meta(tz=True)] | None, fields.EFFECTIVE_FROM] = None
