"""Shares of a billing period, to the second. Pure: no database.

A share of an amount is the difference of two amounts from the period's start, each rounded down. So the shares of
neighboring intervals add up to the share of both together, and the shares of a whole period are the amount.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from billing.prices.price_book import PriceSpan, PriceView
from billing.subscriptions.calendar import CalendarHistory
from core.periods import Period

_SECOND: Final = timedelta(seconds=1)


class PricedInterval(NamedTuple):
    """An interval of time under one price version. None: the tenant had no plan yet, or its subscription had ended."""

    start: datetime
    end: datetime
    version: PriceView | None


class TenantTerms(NamedTuple):
    """What a tenant agreed to in the course of time. ``prices`` are in order (``PriceBook.spans``)."""

    calendars: CalendarHistory
    prices: tuple[PriceSpan, ...]
    joined: datetime | None
    ended: datetime | None

    def version_at(self, instant: datetime) -> PriceView | None:
        """The version whose fees the tenant owes at an instant."""
        return next((each.version for each in self.intervals(Period(instant, instant + _SECOND))), None)

    def intervals(self, period: Period) -> Iterator[PricedInterval]:
        """The versions whose fees the tenant owes in a period, one after the other, without gaps."""
        borders = {period.start, period.end, *(span.begins for span in self.prices)}
        borders |= {instant for instant in (self.joined, self.ended) if instant is not None}
        inside = sorted(border for border in borders if period.start <= border <= period.end)
        for start, end in pairwise(inside):
            yield PricedInterval(start, end, self._owed_at(start))

    def _owed_at(self, instant: datetime) -> PriceView | None:
        if self.joined is None or instant < self.joined or (self.ended is not None and instant >= self.ended):
            return None
        begun = (span.version for span in reversed(self.prices) if span.begins <= instant)
        return next(begun, None)


def share(amount: int, whole: Period, start: datetime, end: datetime) -> int:
    """The part of an amount for ``whole`` that belongs to ``[start, end)``, which lies in it."""
    seconds = (whole.end - whole.start) // _SECOND
    return amount * _offset(whole, end) // seconds - amount * _offset(whole, start) // seconds


def prorated(amounts: Iterable[tuple[PricedInterval, int]], whole: Period) -> int:
    """The sum of the shares of intervals, each with the amount for all of ``whole``."""
    return sum(share(amount, whole, interval.start, interval.end) for interval, amount in amounts)


def _offset(whole: Period, instant: datetime) -> int:
    return (min(max(instant, whole.start), whole.end) - whole.start) // _SECOND
