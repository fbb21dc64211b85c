"""Redis's time in this process. Usage events and what gateways exchange carry this time, not the machine's.

Each heartbeat reads it, and the monotonic clock counts on in between. So a machine with a wrong clock, or one that is
set while requests run, moves no bill into another period. Until the first reading, the machine's own clock counts.
"""

import time

from core import clock


class RedisClock:
    """The current time by Redis's last answer to TIME. ``synchronized`` is False until the first answer."""

    def __init__(self) -> None:
        self._ahead_ms = clock.now_ms() - _monotonic_ms()
        self.synchronized = False

    def now_ms(self) -> int:
        """The current instant in Unix milliseconds."""
        return self._ahead_ms + _monotonic_ms()

    def synchronize(self, seconds: int, microseconds: int) -> None:
        """Apply what Redis has just answered to TIME."""
        self._ahead_ms = seconds * 1000 + microseconds // 1000 - _monotonic_ms()
        self.synchronized = True


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
