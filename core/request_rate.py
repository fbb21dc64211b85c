"""A limit on the rate of requests by caller, in the memory of one process. GCRA, the ATM Forum's leaky bucket as a
meter, with a burst: one number for each caller.

Limits that several processes share are in the gateway's ``quota`` room.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_CALLERS_MAX: Final = 10_000
_ROUNDING_S: Final = 1e-6  # sums of intervals are not exact


class RequestRate:
    """The buckets of one process. Over ``_CALLERS_MAX`` callers, the bucket that was used least recently is dropped.
    Threads may share it.
    """

    def __init__(self, per_minute: int, *, burst_s: float = 60, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._interval_s = 60 / per_minute
        self._burst_s = burst_s
        self._clock = clock
        self._arrivals_s: OrderedDict[str, float] = OrderedDict()  # theoretical arrival times
        self._guard = threading.Lock()

    def charge(self, caller: str) -> float:
        """Count one request of a caller, unless its bucket is full. Returns how long it must wait in seconds; 0 where
        the request was counted.
        """
        now = self._clock()
        with self._guard:
            arrival_s = max(now, self._arrivals_s.pop(caller, 0.0))
            wait_s = arrival_s + self._interval_s - now - self._burst_s
            over = wait_s > _ROUNDING_S
            self._arrivals_s[caller] = arrival_s if over else arrival_s + self._interval_s
            if len(self._arrivals_s) > _CALLERS_MAX:
                self._arrivals_s.popitem(last=False)
        return wait_s if over else 0.0
