"""Explains a line of an invoice: the price version, and the requests that it is made of, each rated again.

Requests come in the order in which they settled, and a line of any length takes the memory of one page.
"""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.documents.invoice_lines import lines_beside
from billing.documents.line_cover import cover_of, included_before, kind_of
from billing.documents.line_records import HOUR, HourOfLine, LineRecords, RequestPosition
from billing.invoices.views import InvoiceLineView, InvoiceView
from billing.prices import price_book
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES, RequestCounts
from core import fields
from core.fields import about
from core.periods import Period
from core.rating import RatedAmounts, rate

_SHOWN: Final = (
    "request_id", "settled_at", "key_id", "base_model", "adapter_id", "estimated",
    "input_tokens", "cached_tokens", "output_tokens", "kv_page_ms",
)  # fmt: skip


class ExplainedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a line. ``quantity`` is what it used of the line's kind, ``line_quantity`` the part of it in this
    line, and ``amount_nanos`` that part's amount; over all records they sum to the line's. ``recorded_nanos`` is the
    amount in the ledger for the kind, ``rerated_nanos`` what rating its quantities again gives. A request id that ends
    in ``:rest`` is what an estimated request used beyond its estimate.
    """

    request_id: Annotated[str, fields.REQUEST_ID]
    settled_at: Annotated[datetime, fields.SETTLED_AT]
    key_id: Annotated[str, fields.KEY_ID]
    base_model: Annotated[str, fields.BASE_MODEL]
    adapter_id: Annotated[str | None, fields.ADAPTER_ID]
    estimated: Annotated[bool, about("Whether it is the last checkpoint of a request whose gateway died.")]
    late: Annotated[bool, about("Whether it was recorded after its period was closed.")]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    quantity: Annotated[Decimal, about("Units of the line's kind that the request used.")]
    line_quantity: Annotated[Decimal, about("The part of the quantity that lies in this line.")]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    recorded_nanos: Annotated[int, fields.RECORDED_NANOS]
    rerated_nanos: Annotated[int, about("Amount of this kind of usage when the record is rated again, in nanodollars.")]
    rerated_equal: Annotated[bool, about("Whether all amounts of the record are the same when it is rated again.")]


class LineExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A line of usage with its price. ``found_quantity`` and ``found_nanos`` are what the requests sum to, which must
    be the line's own: ``matches``.
    """

    line: InvoiceLineView
    price: PriceView
    found_quantity: Decimal
    found_nanos: int
    matches: bool


class RequestsOfLine(NamedTuple):
    """A page of records, and where the next one begins."""

    requests: list[ExplainedRequest]
    following: RequestPosition | None


class LineReader:
    """Reads what one line of usage is made of."""

    def __init__(self, session: Session, invoice: InvoiceView, line: InvoiceLineView) -> None:
        assert line.kind in QUANTITIES, "only usage is made of requests"
        assert line.price_version_id is not None, "usage has a price"
        self._line = line
        self._quantity = QUANTITIES[kind_of(line)]
        self._price = price_book.versions_by_id(session, [line.price_version_id])[line.price_version_id]
        beside = lines_beside(session, invoice.id, line)
        self._cover = cover_of(line, beside, self._price.card)
        period = Period(invoice.period_start, invoice.period_end)
        if line.covers_from is not None and line.covers_until is not None:
            period = Period(line.covers_from, line.covers_until)
        self._records = LineRecords(
            session,
            tenant_id=invoice.tenant_id,
            period=period,
            line=line,
            card=self._price.card,
            included=dict(included_before(line, beside, self._price.card)),
        )
        self._hours = self._records.read_hours()

    def explain(self) -> LineExplanation:
        """The line, its price, and what its requests sum to."""
        units = sum(hour.units for hour in self._hours)
        nanos = sum(hour.nanos for hour in self._hours)
        if self._cover.price is not None:
            units, nanos = self._cover.within(0, units)
        return LineExplanation(
            line=self._line,
            price=self._price,
            found_quantity=self._quantity.in_units(units),
            found_nanos=nanos,
            matches=units == self._cover.units and nanos == self._line.amount_nanos,
        )

    def read(self, after: RequestPosition | None, *, limit: int) -> RequestsOfLine:
        """The records after a position, in the order in which they settled."""
        found: list[ExplainedRequest] = []
        for hour, before in self._hours_from(after):
            within = None if self._cover.price is None else (self._cover.first - before, self._cover.last - before)
            rows = self._records.read(hour, after, limit=limit + 1 - len(found), within=within)
            found += (self._request(row, before) for row in rows)
            if len(found) > limit:
                last = found[limit - 1]
                return RequestsOfLine(found[:limit], RequestPosition(last.settled_at, last.request_id))
        return RequestsOfLine(found, None)

    def _hours_from(self, after: RequestPosition | None) -> Iterator[tuple[HourOfLine, int]]:
        """The hours with units of the line, from that of ``after`` on, and the units before each."""
        before = 0
        for hour in self._hours:
            in_line = self._cover.price is None or (
                before + hour.units > self._cover.first and before < self._cover.last
            )
            if in_line and (after is None or hour.start + HOUR > after.settled_at):
                yield hour, before
            before += hour.units

    def _request(self, row: sa.RowMapping, before: int) -> ExplainedRequest:
        units, amount_nanos = row["units"], row["nanos"]
        if self._cover.price is not None:
            begins = before + row["begins"]
            units, amount_nanos = self._cover.within(begins, begins + row["counted"])
        stored = msgspec.convert(dict(row), RatedAmounts)
        rated = rate(
            msgspec.convert(dict(row), RequestCounts),
            self._price.card.highest_prices(row["base_model"], row["rank_class"], row["service_tier"]),
        )
        return ExplainedRequest(
            quantity=self._quantity.in_units(row["units"]),
            line_quantity=self._quantity.in_units(units),
            amount_nanos=amount_nanos,
            recorded_nanos=row["nanos"],
            rerated_nanos=getattr(rated, self._quantity.amount),
            rerated_equal=rated == stored,
            late=row["late_from"] is not None,
            **{name: row[name] for name in _SHOWN},
        )
