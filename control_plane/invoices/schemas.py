"""Wire types of the invoices room. Answers are ``billing.views`` and ``billing.invoices.views``, as far as they fit."""

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
from billing.views import InvoiceLineView, InvoiceView
from control_plane.tenants.schemas import Reason

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

    until: Annotated[str, msgspec.Meta(extra_json_schema={"anyOf": [{"const": "now"}, {"format": "date-time"}]})]
    tenant_id: PlainId | None = None
    dry_run: bool = False


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The invoices that this close created; empty when there was nothing to invoice. Those of a dry run have neither id
    nor number.
    """

    dry_run: bool
    invoices: Sequence[InvoiceView]


class InvoiceWithLines(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines in printing order, and everything that happened to it."""

    seller: Seller | None
    buyer: Buyer | None
    lines: Sequence[InvoiceLineView]
    credits: Sequence[AppliedCredit]
    tax_lines: Sequence[TaxLine]
    payments: Sequence[PaymentView]
    credit_notes: Sequence[CreditNoteView]
    events: Sequence[InvoiceEventView]
    sha256: str


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant's drafts, oldest period first; the last one is of the running period."""

    drafts: Sequence[DraftDocument]


class NewCreditNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A credit note for ``amount_cents`` before tax, or for what is left of a line. What is still due is lowered first;
    the rest goes where ``to`` says.
    """

    reason: Reason
    to: CreditDestination = "amount_due"
    amount_cents: Cents | None = None
    line_id: PlainId | None = None


class NewPayment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payment that arrived outside of Stripe, such as a bank transfer. Its ``reference`` is unique."""

    amount_cents: Cents
    reference: Reference


class EndingReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why an invoice is ended."""

    reason: Reason


class InvoiceVoid(EndingReason, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why an invoice is voided. Its lines are on the tenant's next invoice, or with ``write_off`` on none."""

    write_off: bool = False


class CustomerBalance(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform owes the tenant. It pays the next invoices."""

    balance_cents: int
    currency: Literal["usd"] = "usd"


class ProfileBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tenant's details on later invoices. Omitted fields are empty. A VAT id is checked by its form only."""

    legal_name: LegalName
    address: AddressLines = ()
    country: Country | None = None
    email: Email | None = None
    vat_id: VatId | None = None
    order_number: PrintedText | None = None


class AdminProfileBody(ProfileBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's details, with an exemption from tax by the date of the invoice (``exempt_until`` is exclusive) and its
    own days to pay.
    """

    exempt_from: date | None = None
    exempt_until: date | None = None
    payment_days: PaymentDays | None = None


class SellerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's details on later invoices, whether it charges tax by its table of rates, and its terms."""

    legal_name: LegalName
    address: AddressLines = ()
    country: Country | None = None
    vat_id: VatId | None = None
    tax: TaxMode = "none"
    payment_days: PaymentDays = PAYMENT_DAYS
    how_to_pay: AddressLines = ()


class TaxRates(msgspec.Struct, frozen=True, kw_only=True):
    """All tax rates, by country, tax and start."""

    rates: Sequence[TaxRateView]


class NewTaxRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tax of a country from ``effective_from`` on, or from now on; a rate of 0 ends it."""

    country: Country
    name: TaxName
    rate_ppm: RatePpm
    effective_from: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
