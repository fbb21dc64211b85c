"""Whether to ask S3 at all: after failures that are the service's own, a pause, then one probe, then all again.

A broken or slow object says nothing of the service, so only two things count: nobody listens, or the server says 5xx to
several owners with no success between. Fails closed for what would have to be downloaded; the disk serves on.
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
        """Whether downloads are being refused, but for probes."""
        return self._open_until is not None

    def check(self) -> None:
        """Raises ``Unavailable`` while the pause lasts, or while a probe is under way."""
        if self._open_until is None:
            return
        wait_s = max(self._open_until, self._probing_until) - self._clock()
        if wait_s > 0:
            raise Unavailable(
                "the object store does not answer; adapters on this replica's disk serve on, others must wait",
                code="store_unavailable",
                retry_after_s=max(1.0, wait_s),
            )

    def admit(self) -> None:
        """The same; whom it lets through after a pause is the probe."""
        self.check()
        if self._open_until is not None:
            self._probing_until = self._clock() + self._pause_s  # one that never reports is followed by another

    def succeeded(self) -> None:
        """S3 answered: whatever the answer was, the service is there."""
        self._failures, self._open_until, self._probing_until = 0, None, 0.0
        self._pause_s = self._open_s
        self._owners.clear()

    def failed(self, owner: str, *, unreachable: bool) -> None:
        """``unreachable``: nobody listens; otherwise the server itself said that it cannot serve."""
        self._failures += 1
        if len(self._owners) < _OWNERS_KEPT:
            self._owners.add(owner)
        if self._open_until is not None:
            if self._clock() < self._open_until:
                return  # began before the pause
            self._pause_s = min(self._open_max_s, 2 * self._pause_s)
        elif self._failures < _FAILURES or not (unreachable or len(self._owners) > 1):
            return
        self._probing_until = 0.0
        self._open_until = self._clock() + self._pause_s
