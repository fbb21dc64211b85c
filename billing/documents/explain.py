"""Explains a line of an invoice: the price version, and the requests that it is made of, each rated again.

Requests come in the order in which they settled. The hourly sums say in which hours the line has any, so a page reads
the records of those hours only, and a line of any length takes the memory of one page.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.documents.invoice_lines import lines_of_tiers
from billing.documents.line_cover import USAGE_KINDS, cover_of, models_with_own_tiers
from billing.prices import price_book
from billing.usage.sums import NOT_LATE, hour_of
from billing.views import InvoiceLineView, InvoiceView, PriceView
from core.rating import Charge, rate

_HOUR: Final = timedelta(hours=1)

_UNITS: Final = {
    "uncached_input_tokens": "input_tokens - cached_tokens",
    "cached_input_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
    "kv_page_seconds": "kv_page_ms",
}
_NANOS: Final = {
    "uncached_input_tokens": "input_nanos",
    "cached_input_tokens": "cached_input_nanos",
    "output_tokens": "output_nanos",
    "kv_page_seconds": "kv_nanos",
}

_OF_LINE: Final = """
tenant_id = :tenant_id AND price_version_id = :version
    AND (CAST(:base_model AS text) IS NULL OR base_model = :base_model)
    AND NOT base_model = ANY(CAST(:other_models AS text[]))
    AND (:any_adapter OR coalesce(adapter_id, '') = :adapter_id AND coalesce(rank_class, 0) = :rank_class)
    AND {units} > 0
"""
_OF_LATE_HOUR: Final = """
late_from >= :start AND late_from < :end
    AND (CAST(:late_for AS timestamptz) IS NULL OR date_trunc('month', {instant}, 'UTC') = :late_for)
"""

_HOURS: Final = {
    kind: sa.text(f"""
SELECT hour, sum({_UNITS[kind]})::bigint AS units, sum({_NANOS[kind]})::bigint AS nanos
FROM usage_hours
WHERE {_OF_LINE.format(units=_UNITS[kind])}
    AND CASE WHEN :late THEN {_OF_LATE_HOUR.format(instant="hour")}
        ELSE late_from = :not_late AND hour >= :first_hour AND hour < :end END
GROUP BY hour ORDER BY hour
""")  # noqa: S608 - constants of this module
    for kind in USAGE_KINDS
}
_RECORDS_OF_HOUR: Final = {
    kind: f"""
SELECT request_id, settled_at, late_from, key_id, base_model, adapter_id, rank_class, estimated, input_tokens,
    cached_tokens, output_tokens, kv_page_ms, input_nanos, cached_input_nanos, output_nanos, kv_nanos,
    {_UNITS[kind]} AS units, {_NANOS[kind]} AS nanos
FROM usage_now
WHERE {_OF_LINE.format(units=_UNITS[kind])}
    AND settled_at >= :hour AND settled_at < :hour_end
    AND CASE WHEN :late THEN {_OF_LATE_HOUR.format(instant="settled_at")} ELSE late_from IS NULL END
"""  # noqa: S608 - constants of this module
    for kind in USAGE_KINDS
}
_BOUNDARY: Final = {
    kind: sa.text(f"""
SELECT coalesce(sum(units), 0)::bigint AS units, coalesce(sum(nanos), 0)::bigint AS nanos
FROM ({_RECORDS_OF_HOUR[kind]}) records
""")  # noqa: S608 - constants of this module
    for kind in USAGE_KINDS
}
_PAGE: Final = {
    kind: sa.text(f"""
SELECT * FROM ({_RECORDS_OF_HOUR[kind]}) records
WHERE (settled_at, request_id) > (:after_settled, :after_id)
ORDER BY settled_at, request_id LIMIT :limit
""")  # noqa: S608 - constants of this module
    for kind in USAGE_KINDS
}
_COUNTED_PAGE: Final = {
    kind: sa.text(f"""
SELECT * FROM (
    SELECT *, (sum(units) OVER (ORDER BY settled_at, request_id) - units)::bigint AS begins
    FROM ({_RECORDS_OF_HOUR[kind]}) records
) counted
WHERE (settled_at, request_id) > (:after_settled, :after_id) AND begins + units > :first AND begins < :last
ORDER BY settled_at, request_id LIMIT :limit
""")  # noqa: S608 - constants of this module
    for kind in USAGE_KINDS
}
"""The same with the units before each record in its hour, for lines that share out tiers."""


class RequestPosition(NamedTuple):
    """The last record of a page."""

    settled_at: datetime
    request_id: str


class ExplainedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a line. ``quantity`` is what it used of the line's kind, ``line_quantity`` the part of it in this
    line, and ``amount_nanos`` that part's amount; over all records they sum to the line's. ``recorded_nanos`` is the
    amount in the ledger for the kind, ``rerated_nanos`` what rating its quantities again gives. A request id that ends
    in ``:rest`` is what an estimated request used beyond its estimate.
    """

    request_id: str
    settled_at: datetime
    key_id: str
    base_model: str
    adapter_id: str | None
    estimated: bool
    late: bool
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int
    quantity: Decimal
    line_quantity: Decimal
    amount_nanos: int
    recorded_nanos: int
    rerated_nanos: int
    rerated_equal: bool


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


class _Hour(NamedTuple):
    start: datetime
    units: int
    nanos: int


class LineReader:
    """Reads what one line of usage is made of."""

    def __init__(self, session: Session, invoice: InvoiceView, line: InvoiceLineView) -> None:
        assert line.kind in USAGE_KINDS, "only usage is made of requests"
        assert line.price_version_id is not None, "usage has a price"
        self._session = session
        self._invoice = invoice
        self._line = line
        self._price = price_book.versions_by_id(session, [line.price_version_id])[line.price_version_id]
        tiers = [] if line.tier is None else lines_of_tiers(session, invoice.id, line)
        self._cover = cover_of(line, tiers, self._price.card)
        self._hours = [self._within_period(hour) for hour in self._read_hours()]

    def explain(self) -> LineExplanation:
        """The line, its price, and what its requests sum to."""
        units, nanos = self._found()
        return LineExplanation(
            line=self._line,
            price=self._price,
            found_quantity=self._quantity(units),
            found_nanos=nanos,
            matches=units == self._cover.units and nanos == self._line.amount_nanos,
        )

    def read(self, after: RequestPosition | None, *, limit: int) -> RequestsOfLine:
        """The records after a position, in the order in which they settled."""
        found: list[ExplainedRequest] = []
        for hour, before in self._hours_from(after):
            rows = self._records(hour, before, after, limit + 1 - len(found))
            found += (self._request(row, before) for row in rows)
            if len(found) > limit:
                last = found[limit - 1]
                return RequestsOfLine(found[:limit], RequestPosition(last.settled_at, last.request_id))
        return RequestsOfLine(found, None)

    def _found(self) -> tuple[int, int]:
        units = sum(hour.units for hour in self._hours)
        if self._cover.tiered is None:
            return units, sum(hour.nanos for hour in self._hours)
        return self._cover.within(0, units)

    def _hours_from(self, after: RequestPosition | None) -> Iterator[tuple[_Hour, int]]:
        """The hours with units of the line, from that of ``after`` on, and the units before each."""
        before = 0
        for hour in self._hours:
            in_line = self._cover.tiered is None or (
                before + hour.units > self._cover.first and before < self._cover.last
            )
            if in_line and (after is None or hour.start + _HOUR > after.settled_at):
                yield hour, before
            before += hour.units

    def _read_hours(self) -> list[_Hour]:
        rows = self._session.connection().execute(
            _HOURS[self._line.kind],
            self._parameters() | {"not_late": NOT_LATE, "first_hour": hour_of(self._invoice.period_start)},
        )
        return [_Hour(*row) for row in rows]

    def _within_period(self, hour: _Hour) -> _Hour:
        """An hour in which the period begins or ends is summed from its records, as far as they lie in the period."""
        period_start, period_end = self._invoice.period_start, self._invoice.period_end
        whole = hour.start >= period_start and hour.start + _HOUR <= period_end
        if whole or self._line.late_for is not None:
            return hour
        row = self._session.connection().execute(_BOUNDARY[self._line.kind], self._hour_parameters(hour)).one()
        return _Hour(hour.start, row.units, row.nanos)

    def _records(self, hour: _Hour, before: int, after: RequestPosition | None, limit: int) -> Sequence[sa.RowMapping]:
        parameters = self._hour_parameters(hour) | {
            "after_settled": after.settled_at if after else NOT_LATE,
            "after_id": after.request_id if after else "",
            "limit": limit,
        }
        if self._cover.tiered is None:
            statement = _PAGE[self._line.kind]
        else:
            statement = _COUNTED_PAGE[self._line.kind]
            parameters |= {"first": self._cover.first - before, "last": self._cover.last - before}
        return self._session.connection().execute(statement, parameters).mappings().all()

    def _parameters(self) -> dict[str, Any]:  # values of several types
        line, tiered = self._line, self._line.tier is not None
        others = models_with_own_tiers(line, self._price.card) if tiered and line.base_model is None else []
        return {
            "tenant_id": self._invoice.tenant_id,
            "version": line.price_version_id,
            "base_model": line.base_model,
            "other_models": others,
            "any_adapter": tiered,
            "adapter_id": line.adapter_id or "",
            "rank_class": line.rank_class or 0,
            "late": line.late_for is not None,
            "late_for": None if tiered else line.late_for,
            "start": self._invoice.period_start,
            "end": self._invoice.period_end,
        }

    def _hour_parameters(self, hour: _Hour) -> dict[str, Any]:  # values of several types
        late = self._line.late_for is not None
        return self._parameters() | {
            "hour": hour.start if late else max(hour.start, self._invoice.period_start),
            "hour_end": hour.start + _HOUR if late else min(hour.start + _HOUR, self._invoice.period_end),
        }

    def _request(self, row: sa.RowMapping, before: int) -> ExplainedRequest:
        units, amount_nanos = row["units"], row["nanos"]
        if self._cover.tiered is not None:
            begins = before + row["begins"]
            units, amount_nanos = self._cover.within(begins, begins + row["units"])
        stored = Charge(**{name: row[name] for name in Charge.__struct_fields__})
        rated = rate(_Used(row), self._price.card.held(row["base_model"], row["rank_class"]))
        return ExplainedRequest(
            quantity=self._quantity(row["units"]),
            line_quantity=self._quantity(units),
            amount_nanos=amount_nanos,
            recorded_nanos=row["nanos"],
            rerated_nanos=getattr(rated, _NANOS[self._line.kind]),
            rerated_equal=rated == stored,
            late=row["late_from"] is not None,
            **{name: row[name] for name in _SHOWN},
        )

    def _quantity(self, units: int) -> Decimal:
        return Decimal(units).scaleb(-3) if self._line.kind == "kv_page_seconds" else Decimal(units)


_SHOWN: Final = (
    "request_id", "settled_at", "key_id", "base_model", "adapter_id", "estimated",
    "input_tokens", "cached_tokens", "output_tokens", "kv_page_ms",
)  # fmt: skip


class _Used:
    """The quantities of a record."""

    def __init__(self, row: sa.RowMapping) -> None:
        self.input_tokens: int = row["input_tokens"]
        self.cached_tokens: int = row["cached_tokens"]
        self.output_tokens: int = row["output_tokens"]
        self.kv_page_ms: int = row["kv_page_ms"]
