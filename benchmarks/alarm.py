"""A timer of the kernel's, to the microsecond. The event loop's own are of whole milliseconds and begin anew when a
socket wakes the loop, which made a benchmark's events 0.6 ms late, and before one gateway more often than another.
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


class Alarm:
    """``on_ring`` is called with how many times it has rung since the last call."""

    def __init__(self, on_ring: Callable[[int], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._on_ring = on_ring
        self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._file, self._ring)

    def every(self, period_s: float) -> None:
        """Ring each ``period_s`` from now on; with 0 no more."""
        period_ns = round(period_s * _NS)
        self._set(period_ns, period_ns)

    def at(self, monotonic_s: float) -> None:
        """Ring once, then; at once where that has been."""
        self._set(0, max(1, round(monotonic_s * _NS)), _ABSOLUTE)

    def _set(self, period_ns: int, first_ns: int, flags: int = 0) -> None:
        spec = (ctypes.c_long * 4)(*divmod(period_ns, _NS), *divmod(first_ns, _NS))
        if self._libc.timerfd_settime(self._file, flags, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set anew meanwhile
            self._on_ring(*struct.unpack("Q", os.read(self._file, 8)))
