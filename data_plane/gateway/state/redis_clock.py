"""Redis's time in this process: what is billed, and what gateways tell one another, is stamped in it.

It is heard with every heartbeat, and counted on meanwhile by the monotonic clock. So a machine whose clock is wrong, or
set while requests run, moves no bill into another period. Until it is first heard, the machine's own stands for it.
"""

import time

from core import clock


class ServerClock:
    """What Redis's time is by what was ``heard`` last."""

    def __init__(self) -> None:
        self._ahead_ms = clock.now_ms() - _monotonic_ms()
        self.heard = False

    def now_ms(self) -> int:
        """The current instant in Unix milliseconds."""
        return self._ahead_ms + _monotonic_ms()

    def hear(self, seconds: int, microseconds: int) -> None:
        """Take over what Redis has just answered to TIME."""
        self._ahead_ms = seconds * 1000 + microseconds // 1000 - _monotonic_ms()
        self.heard = True


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


server_clock = ServerClock()
"""The process's only one, as it has only one Redis."""
