"""The current time, as functions that can be passed in and replaced. Durations use the monotonic clock instead."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def now() -> datetime:
    """The current instant, aware, in UTC."""
    return datetime.now(UTC)


def now_ms() -> int:
    """The current instant in Unix milliseconds, as events carry it."""
    return time.time_ns() // 1_000_000


def from_ms(unix_ms: int) -> datetime:
    """The aware UTC instant of a Unix time in milliseconds."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


def to_ms(instant: datetime) -> int:
    """Unix milliseconds of an aware instant."""
    return int(instant.timestamp() * 1000)
