"""Wire types of an invoice's explanation."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

import msgspec

from billing.documents.explain import ExplainedRequest
from billing.prices.card import PriceTier
from billing.views import InvoiceLineView, InvoiceView


class PriceOfLine(msgspec.Struct, frozen=True, kw_only=True):
    """The price version of a line, and how it prices the line's quantity: ``unit``, ``graduated``, ``volume`` or
    ``package``. ``tiers`` are those of the whole period's quantity.
    """

    id: str
    plan_id: str
    effective_from: datetime
    mode: str
    unit_price_nanos: int
    tiers: Sequence[PriceTier] = ()
    package_units: int | None = None
    package_nanos: int | None = None


class ExplainedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line, its price, its arithmetic as text, and where its requests are. Lines that are no usage have none."""

    line: InvoiceLineView
    price: PriceOfLine | None
    arithmetic: str
    requests_url: str | None


class InvoiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice and a page of its explained lines, in print order."""

    invoice: InvoiceView
    data: Sequence[ExplainedLine]
    next_cursor: str | None = None


class ExplainedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """A line of usage and a page of its requests, in the order in which they settled.

    All requests of the line sum to ``found_quantity`` and ``found_nanos``; ``matches`` says that these are the line's
    own quantity and amount.
    """

    line: InvoiceLineView
    price: PriceOfLine
    found_quantity: Decimal
    found_nanos: int
    matches: bool
    data: Sequence[ExplainedRequest]
    next_cursor: str | None = None
