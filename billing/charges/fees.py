"""The lines of base fees, as a pure function of the tenant's terms and the time that is billed.

A fee in arrears is charged on the invoice of its period. A fee in advance is charged on the invoice before, at the
price version in force when its period begins; a later change of plan is prorated on the next invoice.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby

from billing.charges.lines import DraftInvoiceLine, LineKind, amount_line
from billing.charges.proration import PricedInterval, TenantTerms, share
from billing.prices.card import PriceCard
from billing.prices.price_book import PriceView
from core.periods import Period


def fee_lines(terms: TenantTerms, billed: Period) -> Iterator[DraftInvoiceLine]:
    """The fees that an invoice for ``billed`` has. The time lies in one period of the tenant's calendar."""
    if terms.ended is not None and terms.ended <= billed.start:
        return
    around = terms.calendars.period_at(billed.start)
    whole = terms.calendars.at(billed.start).period_at(billed.start)
    ends = terms.ended is not None and terms.ended <= billed.end
    paid = _paid_in_advance(terms, around.start)
    for interval in _same_fee(terms.intervals(Period(billed.start, around.end if ends else billed.end))):
        fee_nanos = _fee(interval.version)
        before_nanos = 0 if paid is None else paid.card.base_fee_nanos
        if paid is not None and before_nanos == fee_nanos:
            continue
        if paid is not None and before_nanos:
            unused = -share(before_nanos, whole, interval.start, interval.end)
            yield from _line("proration", "Unused base fee", unused, interval, paid)
        if fee_nanos:
            owed = share(fee_nanos, whole, interval.start, interval.end)
            yield from _line("proration" if before_nanos else "base_fee", "Base fee", owed, interval, interval.version)
    if around.end == billed.end and not ends:
        yield from _in_advance(terms, billed.end)


def _in_advance(terms: TenantTerms, start: datetime) -> Iterator[DraftInvoiceLine]:
    version = _paid_in_advance(terms, start)
    if version is not None:
        following = terms.calendars.period_at(start)
        whole = terms.calendars.at(start).period_at(start)
        owed = share(version.card.base_fee_nanos, whole, *following)
        yield from _line("base_fee", "Base fee in advance", owed, PricedInterval(*following, version), version)


def _paid_in_advance(terms: TenantTerms, start: datetime) -> PriceView | None:
    """The version whose fee for the period that begins at ``start`` was on the invoice before."""
    if terms.joined is None or start <= terms.joined:
        return None
    version = terms.version_at(start)
    return version if version is not None and _is_advance(version.card) else None


def _is_advance(card: PriceCard) -> bool:
    return card.base_fee_when == "advance" and card.base_fee_nanos > 0


def _fee(version: PriceView | None) -> int:
    return 0 if version is None else version.card.base_fee_nanos


def _same_fee(intervals: Iterator[PricedInterval]) -> Iterator[PricedInterval]:
    for _, same in groupby(intervals, key=lambda interval: _fee(interval.version)):
        group = list(same)
        yield PricedInterval(group[0].start, group[-1].end, group[0].version)


def _line(
    kind: LineKind, description: str, nanos: int, interval: PricedInterval, version: PriceView | None
) -> Iterator[DraftInvoiceLine]:
    if nanos:
        yield amount_line(
            kind,
            nanos,
            description=description,
            price_version_id=None if version is None else version.id,
            covers=Period(interval.start, interval.end),
        )
