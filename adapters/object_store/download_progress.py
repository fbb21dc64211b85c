"""The progress of one download, written by its threads and read by others: bytes, last activity, deadline, stop.

``DownloadEstimates`` estimates from finished downloads how long the next takes. Moving bytes is
``adapters.object_store.ranged_download``.
"""

import math
import threading
import time
from typing import Final

from core.errors import Unavailable

_FRESH: Final = 0.3  # weight of the newest download in the averages
_RETRY_MIN_S: Final = 1
_FIRST_GUESS_S: Final = 2  # before anything was ever downloaded here


class DownloadStopped(Unavailable):
    """The download was stopped: its adapter was withdrawn, or the replica stops."""

    default_code = "adapter_download_stopped"


class Download:
    """``begin`` starts the clock, ``add`` counts bytes, ``check`` raises at the deadline or after a stop."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.total_bytes: int | None = None
        self.done_bytes = 0
        self.stop = threading.Event()
        self._guard = threading.Lock()
        self._began_at = self._moved_at = math.inf
        self._timeout_s = math.inf

    def begin(self, timeout_s: float | None = None) -> "Download":
        """Start the clock, with a deadline after ``timeout_s``. Returns the download itself."""
        self._began_at = self._moved_at = time.monotonic()
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        return self

    def add(self, size_bytes: int) -> None:
        """Count received bytes. Negative if bytes are discarded and fetched again."""
        with self._guard:
            self.done_bytes += size_bytes
            self._moved_at = time.monotonic()

    def touch(self) -> None:
        """Record activity without progress."""
        self.add(0)

    def check(self) -> None:
        """Raise ``DownloadStopped`` after a stop, or ``Unavailable`` after the deadline."""
        if self.stop.is_set():
            raise DownloadStopped(f"the download of {self.what} was stopped; retry if you still need it")
        if time.monotonic() > self._began_at + self._timeout_s:
            text = f"{self.what} could not be downloaded within {self._timeout_s:g} s; the object store is slow"
            raise Unavailable(text, code="store_timeout", retry_after_s=_RETRY_MIN_S)

    def pause(self, seconds: float) -> None:
        """Wait before another attempt. Raises as ``check`` does."""
        self.stop.wait(seconds)
        self.check()

    def is_stalled(self, stall_s: float) -> bool:
        """Whether no byte has come for ``stall_s``."""
        return time.monotonic() - self._moved_at > stall_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since ``begin``; 0 before it."""
        return max(0.0, time.monotonic() - self._began_at)


class DownloadEstimates:
    """Running averages over the downloads of this process. Used from one thread."""

    def __init__(self) -> None:
        self._bytes_per_s: float | None = None
        self._seconds: float | None = None

    def record(self, size_bytes: int, seconds: float) -> None:
        """Record a finished download."""
        rate = size_bytes / max(seconds, 1e-6)
        self._bytes_per_s = _mix(self._bytes_per_s, rate)
        self._seconds = _mix(self._seconds, seconds)

    def eta_s(self, download: Download, *, rounds_ahead: float) -> float:
        """Until this download is done. ``rounds_ahead``: how many average downloads come before it in its slot.

        A running one is judged by its own rate, once it has one; a stalled one's estimate so grows as it waits.
        """
        average = _FIRST_GUESS_S if self._seconds is None else self._seconds
        if download.total_bytes is None:
            return max(0.0, average - download.elapsed_s) + rounds_ahead * average
        left = max(0, download.total_bytes - download.done_bytes)
        own = download.done_bytes / download.elapsed_s if download.elapsed_s > 0 else 0.0
        rate = own or self._bytes_per_s
        return (left / rate if rate else average) + rounds_ahead * average


def retry_after_s(eta_s: float, at_most_s: float) -> float:
    """Return the Retry-After for an estimate: whole seconds, at least 1 and at most ``at_most_s``."""
    return float(min(max(_RETRY_MIN_S, math.ceil(eta_s)), at_most_s))


def _mix(average: float | None, newest: float) -> float:
    return newest if average is None else (1 - _FRESH) * average + _FRESH * newest
