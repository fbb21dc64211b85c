"""Token counts of texts that were counted before: what a conversation says again in every turn is counted once.

Kept by whose they are: how fast a count comes would tell one tenant what another has said.
"""

import sys
import threading
from collections import OrderedDict
from typing import Final

_ENTRY_BYTES: Final = 250  # what an entry takes beside its text, about
_SHARE_MAX: Final = 16  # of the whole: one text that took more would drive out all others


class KnownCounts:
    """Counts by owner and text, in about ``max_bytes`` of memory; what was not asked for the longest goes first. Safe
    to share between threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, owner: str, text: str) -> int | None:
        """Tokens of a text, where they are known."""
        with self._lock:
            if (count := self._counts.get((owner, text))) is not None:
                self._counts.move_to_end((owner, text))
            return count

    def put(self, owner: str, text: str, count: int) -> None:
        """Remember what was counted."""
        size_bytes = _size_bytes(text)
        with self._lock:
            if size_bytes > self._max_bytes // _SHARE_MAX or (owner, text) in self._counts:
                return
            self._counts[owner, text] = count
            self._bytes += size_bytes
            while self._bytes > self._max_bytes:
                (_, gone), _ = self._counts.popitem(last=False)
                self._bytes -= _size_bytes(gone)


def _size_bytes(text: str) -> int:
    return sys.getsizeof(text) + _ENTRY_BYTES
