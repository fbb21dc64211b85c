"""The circuit breaker for S3. Closed: downloads pass. Open: they are refused for a pause, then one probe passes.

A broken or slow object says nothing about the service, so only two failures count: S3 is unreachable, or it answers 5xx
to several owners without a success between. While the circuit is open, downloads fail and the disk cache still serves.
"""

import time
from collections.abc import Callable
from typing import Final

from core.errors import Unavailable

_FAILURES: Final = 3  # in a row, before the circuit opens
_OWNERS_KEPT: Final = 8


class StoreCircuitBreaker:
    """``admit`` before a download and ``succeeded`` or ``failed`` after it. Used from one thread.

    ``open_s`` is the first pause; each failed probe doubles it, up to ``open_max_s``.
    """

    def __init__(self, *, open_s: float, open_max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_s, self._open_max_s, self._clock = open_s, open_max_s, clock
        self._failures = 0
        self._owners: set[str] = set()
        self._pause_s = open_s
        self._open_until: float | None = None
        self._probing_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether downloads are refused, except probes."""
        return self._open_until is not None

    def check(self) -> None:
        """Raise ``Unavailable`` during the pause, or while a probe runs."""
        if self._open_until is None:
            return
        wait_s = max(self._open_until, self._probing_until) - self._clock()
        if wait_s > 0:
            raise Unavailable(
                "the object store does not answer; only adapters on this replica's disk can be served",
                code="store_unavailable",
                retry_after_s=max(1.0, wait_s),
            )

    def admit(self) -> None:
        """Raise as ``check`` does. The first download that passes after a pause is the probe."""
        self.check()
        if self._open_until is not None:
            self._probing_until = self._clock() + self._pause_s  # another probe follows if this one never reports

    def succeeded(self) -> None:
        """Close the circuit: S3 answered, so the service is available."""
        self._failures, self._open_until, self._probing_until = 0, None, 0.0
        self._pause_s = self._open_s
        self._owners.clear()

    def failed(self, owner: str, *, unreachable: bool) -> None:
        """Record a failure. ``unreachable``: no connection; otherwise the server answered 5xx."""
        self._failures += 1
        if len(self._owners) < _OWNERS_KEPT:
            self._owners.add(owner)
        if self._open_until is not None:
            if self._clock() < self._open_until:
                return  # this download began before the pause
            self._pause_s = min(self._open_max_s, 2 * self._pause_s)
        elif self._failures < _FAILURES or not (unreachable or len(self._owners) > 1):
            return
        self._probing_until = 0.0
        self._open_until = self._clock() + self._pause_s
