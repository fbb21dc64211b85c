"""A kernel timer (timerfd) with microsecond resolution for the asyncio event loop; it schedules nothing itself.

The event loop's own timers count whole milliseconds and restart when a socket wakes the loop. They made a benchmark's
events 0.6 ms late, and more often for one gateway than for another.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import Final

_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
_NS: Final = 1_000_000_000


class KernelTimer:
    """Calls ``on_ring`` with the number of expirations since the previous call."""

    def __init__(self, on_ring: Callable[[int], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._on_ring = on_ring
        self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._file, self._ring)

    def every(self, period_s: float) -> None:
        """Ring every ``period_s`` seconds from now on; 0 stops the timer."""
        period_ns = round(period_s * _NS)
        self._set(period_ns, period_ns)

    def at(self, monotonic_s: float) -> None:
        """Ring once at this monotonic time, or immediately if it has passed."""
        self._set(0, max(1, round(monotonic_s * _NS)), _ABSOLUTE)

    def _set(self, period_ns: int, first_ns: int, flags: int = 0) -> None:
        spec = (ctypes.c_long * 4)(*divmod(period_ns, _NS), *divmod(first_ns, _NS))
        if self._libc.timerfd_settime(self._file, flags, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the timer was set again before this read
            self._on_ring(*struct.unpack("Q", os.read(self._file, 8)))
