"""When billing periods begin and end, as a pure function of a tenant's calendar. No clock and no database.

Periods are bounded by local midnights of the tenant's time zone, so a day of a changing clock has 23 or 25 hours and a
period has all of them. An anniversary on the 31st ends on the last day of shorter months and never drifts, because each
boundary is computed from the anchor, not from the boundary before.
"""

import calendar
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec

from core.periods import Period

Interval = Literal["week", "month", "quarter", "year"]

INTERVALS: Final = get_args(Interval)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_WEEK: Final = timedelta(days=7)
_MONDAY: Final = date(1970, 1, 5)
_NEW_YEAR: Final = date(1970, 1, 1)


class BillingCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """How often a tenant is billed, in an IANA time zone. With an ``anchor``, periods begin on its anniversaries;
    without one, on Mondays, on the first of a month, of a quarter or of a year.
    """

    interval: Interval = "month"
    zone: str = "UTC"
    anchor: date | None = None

    def period_at(self, instant: datetime) -> Period:
        """The period that holds an aware instant."""
        number = self._number_near(instant)
        while self._boundary(number) > instant:
            number -= 1
        while self._boundary(number + 1) <= instant:
            number += 1
        return Period(self._boundary(number), self._boundary(number + 1))

    def _number_near(self, instant: datetime) -> int:
        local = instant.astimezone(ZoneInfo(self.zone)).date()
        base = self._base()
        if self.interval == "week":
            return (local - base) // _WEEK
        months = (local.year - base.year) * 12 + local.month - base.month
        return months // _MONTHS[self.interval]

    def _boundary(self, number: int) -> datetime:
        base = self._base()
        if self.interval == "week":
            day = base + number * _WEEK
        else:
            year, month = divmod(base.year * 12 + base.month - 1 + number * _MONTHS[self.interval], 12)
            day = date(year, month + 1, min(base.day, calendar.monthrange(year, month + 1)[1]))
        return self._midnight(day)

    def _midnight(self, day: date) -> datetime:
        # A midnight that the clock skips is the instant at which it skips; of a repeated one, the first counts.
        return datetime.combine(day, time.min, tzinfo=ZoneInfo(self.zone)).astimezone(UTC)

    def _base(self) -> date:
        return self.anchor or (_MONDAY if self.interval == "week" else _NEW_YEAR)


class CalendarFrom(NamedTuple):
    """A calendar and the instant from which it holds."""

    since: datetime
    calendar: BillingCalendar


class CalendarHistory:
    """The calendars of a tenant in the course of time. A new one holds from the end of a period of the one before, so
    the periods of both touch; its first period is what is left of the one that it is in by then.
    """

    def __init__(self, changes: Sequence[CalendarFrom] = ()) -> None:
        """``changes`` are in the order of their instants. Before the first one, a tenant has UTC months."""
        self._changes = changes

    def at(self, instant: datetime) -> BillingCalendar:
        """The calendar in force at an aware instant."""
        position = self._position(instant)
        return BillingCalendar() if position == 0 else self._changes[position - 1].calendar

    def period_at(self, instant: datetime) -> Period:
        """The period that holds an aware instant, cut where the calendar changes."""
        position = self._position(instant)
        start, end = self.at(instant).period_at(instant)
        if position:
            start = max(start, self._changes[position - 1].since)
        if position < len(self._changes):
            end = min(end, self._changes[position].since)
        return Period(start, end)

    def ends_between(self, start: datetime, until: datetime) -> Iterator[datetime]:
        """The boundaries after ``start``, up to and including ``until``, in order."""
        end = self.period_at(start).end
        while end <= until:
            yield end
            end = self.period_at(end).end

    def periods_from(self, start: datetime, now: datetime) -> list[Period]:
        """The time from ``start`` on by period, the running one last. It may begin a little after ``now``."""
        ends = [*self.ends_between(start, now), self.period_at(max(start, now)).end]
        return [Period(*bounds) for bounds in zip([start, *ends[:-1]], ends, strict=True)]

    def since(self, instant: datetime) -> datetime | None:
        """Since when the calendar of an instant is in force. None: since the beginning."""
        position = self._position(instant)
        return self._changes[position - 1].since if position else None

    def change_after(self, instant: datetime) -> CalendarFrom | None:
        """The next change after an instant."""
        position = self._position(instant)
        return self._changes[position] if position < len(self._changes) else None

    def _position(self, instant: datetime) -> int:
        return bisect_right(self._changes, instant, key=lambda change: change.since)
