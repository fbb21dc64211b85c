"""Wire types of the invoices room. Others are ``billing.invoices.views`` and ``billing.tax``."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.invoices.views import CreditDestination, DraftDocument, InvoiceView
from billing.tax.parties import Country
from billing.tax.rate_table import TaxRateView
from control_plane.tenants.schemas import Reason
from core import fields
from core.fields import about

Cents = Annotated[int, msgspec.Meta(ge=1, le=100_000_000_000)]
Reference = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern="^[!-~]+(?!\n)$")]
TaxName = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=fields.ONE_LINE)]
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


class TaxRates(msgspec.Struct, frozen=True, kw_only=True):
    """All tax rates, by country, tax and start."""

    rates: Annotated[Sequence[TaxRateView], about("The tax rates.")]


class NewTaxRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tax of a country from ``effective_from`` on, or from now on; a rate of 0 ends it."""

    country: Annotated[Country, about("Country as two capital letters (ISO 3166-1), such as DE.")]
    name: Annotated[TaxName, fields.NAME]
    rate_ppm: Annotated[RatePpm, fields.RATE_PPM]
    effective_from: Annotated[Annotated[datetime, msgspec.Meta(tz=True)] | None, fields.EFFECTIVE_FROM] = None
