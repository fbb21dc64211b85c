"""The days and months of spending limits, by the local midnights of a tenant's time zone. Pure.

Gateways count spending in them and billing reports it in them, so both compute them here.
"""

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

SpendWindow = Literal["day", "month"]


class WindowBounds(NamedTuple):
    """A half-open interval of time, ``[start, end)``, in UTC."""

    start: datetime
    end: datetime


def window_at(zone: str, window: SpendWindow, instant: datetime) -> WindowBounds:
    """The window that holds an aware instant, in an IANA time zone."""
    day = instant.astimezone(ZoneInfo(zone)).date()
    if window == "day":
        return WindowBounds(_midnight(zone, day.toordinal()), _midnight(zone, day.toordinal() + 1))
    first = day.replace(day=1)
    return WindowBounds(
        _midnight(zone, first.toordinal()),
        _midnight(zone, (first + timedelta(days=31)).replace(day=1).toordinal()),
    )


@lru_cache(1_000)
def _midnight(zone: str, ordinal: int) -> datetime:
    """The beginning of a local day. Of a midnight that occurs twice, the first counts."""
    day = datetime.fromordinal(ordinal).date()
    return datetime.combine(day, time.min, tzinfo=ZoneInfo(zone)).astimezone(UTC)
