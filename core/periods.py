"""Pure arithmetic of billing periods, calendar months and usage buckets, all in UTC. No clock and no database."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from core.errors import InvalidRequest

Bucket = Literal["1m", "1h", "1d"]
BUCKET_LENGTH: Final[dict[Bucket, timedelta]] = {
    "1m": timedelta(minutes=1),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_FIRST: Final = 2000
YEAR_LAST: Final = 9000
"""The years of instants and dates that callers may give. Python holds every period around one of them, in any zone."""

TICK: Final = timedelta(microseconds=1)
"""The least time between two instants of the database."""

_MONTH: Final = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")


class Period(NamedTuple):
    """A half-open interval of time, ``[start, end)``."""

    start: datetime
    end: datetime


def aware(instant: datetime, param: str) -> datetime:
    """The same instant in UTC. Raises InvalidRequest naming ``param`` when it has no offset, or lies outside of the
    years ``YEAR_FIRST`` to ``YEAR_LAST``.
    """
    if instant.utcoffset() is None:
        raise InvalidRequest(
            f"{param} is {instant.isoformat()}, without an offset; write it with one, or Z.", param=param
        )
    # Compared before it is converted: in UTC, an instant of the year 9999 may be one of the year 10000.
    if not datetime(YEAR_FIRST, 1, 1, tzinfo=UTC) <= instant < datetime(YEAR_LAST + 1, 1, 1, tzinfo=UTC):
        raise InvalidRequest(
            f"{param} is {instant.isoformat()}; use an instant of the years {YEAR_FIRST} to {YEAR_LAST}.",
            code="instant_out_of_range",
            param=param,
        )
    return instant.astimezone(UTC)


def month(name: str) -> Period:
    """The UTC calendar month ``"YYYY-MM"``."""
    match = _MONTH.fullmatch(name)
    if match is None or not 1 <= int(match[1]) <= 9998:
        raise InvalidRequest(f'month is "{name}"; write it as YYYY-MM, such as 2026-11.', param="month")
    year, number = int(match[1]), int(match[2])
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return Period(datetime(year, number, 1, tzinfo=UTC), datetime(*following, 1, tzinfo=UTC))


def month_start(instant: datetime) -> datetime:
    """The start of the UTC calendar month that holds an aware instant."""
    return instant.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def bucket_start(instant: datetime, bucket: Bucket) -> datetime:
    """The start of the bucket that holds an aware instant: a whole UTC minute, hour or day."""
    return instant - (instant - EPOCH) % BUCKET_LENGTH[bucket]


def bucket_count(period: Period, bucket: Bucket) -> int:
    """The number of buckets that a non-empty period touches."""
    length = BUCKET_LENGTH[bucket]
    return -((bucket_start(period.start, bucket) - period.end) // length)
