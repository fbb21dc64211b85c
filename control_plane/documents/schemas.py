"""Wire types of an invoice's explanation."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec

from billing.documents.explain import ExplainedRequest
from billing.invoices.views import InvoiceLineView, InvoiceView
from billing.prices.card import PriceTier
from core import fields
from core.fields import about


class PriceOfLine(msgspec.Struct, frozen=True, kw_only=True):
    """The price version of a line, and how it prices the line's quantity."""

    id: Annotated[str, fields.ID]
    plan_id: Annotated[str, fields.PLAN_ID]
    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]
    mode: Annotated[str, about("unit, graduated, volume or package.")]
    unit_price_nanos: Annotated[int, fields.UNIT_PRICE_NANOS]
    tiers: Annotated[Sequence[PriceTier], about("Tiers of the whole period's quantity; none for other prices.")] = ()
    package_units: Annotated[int | None, fields.PACKAGE_UNITS] = None
    package_nanos: Annotated[int | None, fields.PACKAGE_NANOS] = None


class ExplainedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line, its price, its arithmetic as text, and where its requests are. Lines that are no usage have none."""

    line: Annotated[InvoiceLineView, fields.LINE]
    price: Annotated[PriceOfLine | None, fields.PRICE]
    arithmetic: Annotated[str, about("Quantity, unit price and amount as text.")]
    requests_url: Annotated[str | None, about("Path of the requests that the line is made of; null without any.")]


class InvoiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice and a page of its explained lines, in print order."""

    invoice: Annotated[InvoiceView, about("The invoice.")]
    data: Annotated[Sequence[ExplainedLine], fields.DATA]
    next_cursor: Annotated[str | None, fields.NEXT_CURSOR] = None


class ExplainedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """A line of usage and a page of its requests as they settled. The sums are of all its requests."""

    line: Annotated[InvoiceLineView, fields.LINE]
    price: Annotated[PriceOfLine, fields.PRICE]
    found_quantity: Annotated[Decimal, about("What the requests of the line sum to.")]
    found_nanos: Annotated[int, about("What the requests of the line sum to, in nanodollars.")]
    matches: Annotated[bool, about("Whether the requests sum to the line's own quantity and amount.")]
    data: Annotated[Sequence[ExplainedRequest], fields.DATA]
    next_cursor: Annotated[str | None, fields.NEXT_CURSOR] = None
