"""Settlements that Redis has and may still lose: buffered here, and in the journal, until billing has recorded them.

The number is bounded; at the bound the oldest are evicted. The settler decides when they are replayed.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Settlement
from data_plane.gateway.settlement.journal import Journal

_AT_ONCE_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class _Entry:
    settled_at: float
    entry: tuple[int, int]
    settlement: Settlement


class ReplayBuffer:
    """One process's billed settlements, in the order in which they settled, each for at least ``retention_s``."""

    def __init__(self, journal: Journal, *, retention_s: float, count_max: int) -> None:
        self._journal = journal
        self._retention_s = retention_s
        self._count_max = count_max
        self._entries: deque[_Entry] = deque()

    def add(self, settlement: Settlement, entry: bytes) -> None:
        """Buffer a settlement that Redis has. ``entry`` of the usage stream, or an earlier one, bills it."""
        self._entries.append(_Entry(time.monotonic(), order_of(entry), settlement))

    async def evict(self, recorded: bytes | None, *, at_end: bool = False) -> None:
        """Evict the settlements that are old enough (at the process's end: of any age) and in billing's ledger, as all
        entries below ``recorded`` are. Evicts a few in each turn of the event loop, which streams share.
        """
        oldest, below = time.monotonic() - (0 if at_end else self._retention_s), order_of(recorded or b"")
        evicted = 0
        while self._entries:
            first = self._entries[0]
            done = recorded is not None and first.entry < below and first.settled_at < oldest
            if not done and len(self._entries) <= self._count_max:
                break
            self._journal.done(self._entries.popleft().settlement.request_id)
            evicted += 1
            if evicted % _AT_ONCE_MAX == 0:
                await asyncio.sleep(0)
        metrics.REPLAY_BUFFER_SETTLEMENTS.set(len(self._entries))

    def pop_all(self) -> list[Settlement]:
        """Remove and return all settlements, to be replayed. The journal still holds them."""
        taken = [each.settlement for each in self._entries]
        self._entries.clear()
        return taken


def order_of(entry: bytes) -> tuple[int, int]:
    """The position of a stream's entry, for comparisons; an unknown entry (empty) sorts first."""
    milliseconds, _, sequence = entry.partition(b"-")
    return int(milliseconds or 0), int(sequence or 0)
