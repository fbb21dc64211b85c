"""Settlements that Redis has and may yet forget: kept here, and in the journal, until billing has recorded them.

A bounded number; at the bound the oldest go. When they are to be settled again is the settler's business.
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
class _Kept:
    settled_at: float
    entry: tuple[int, int]
    settlement: Settlement


class Kept:
    """The settlements of one process that bill, in the order in which they settled, for ``kept_s`` at least."""

    def __init__(self, journal: Journal, *, kept_s: float, count_max: int) -> None:
        self._journal = journal
        self._kept_s = kept_s
        self._count_max = count_max
        self._kept: deque[_Kept] = deque()

    def add(self, settlement: Settlement, entry: bytes) -> None:
        """Redis has it, and told billing by this entry of the usage stream, or by an earlier one."""
        self._kept.append(_Kept(time.monotonic(), order_of(entry), settlement))

    async def forget(self, recorded: bytes | None, *, at_end: bool = False) -> None:
        """Forget what is old enough, or at the process's end of any age, and in the ledger, as all entries below
        ``recorded`` are; a few in each turn of the loop, which streams share.
        """
        oldest, below = time.monotonic() - (0 if at_end else self._kept_s), order_of(recorded or b"")
        forgotten = 0
        while self._kept:
            first = self._kept[0]
            done = recorded is not None and first.entry < below and first.settled_at < oldest
            if not done and len(self._kept) <= self._count_max:
                break
            self._journal.done(self._kept.popleft().settlement.request_id)
            forgotten += 1
            if forgotten % _AT_ONCE_MAX == 0:
                await asyncio.sleep(0)
        metrics.REPLAY_BUFFER_SETTLEMENTS.set(len(self._kept))

    def take(self) -> list[Settlement]:
        """All of them, to be settled again. The journal goes on holding them."""
        taken = [each.settlement for each in self._kept]
        self._kept.clear()
        return taken


def order_of(entry: bytes) -> tuple[int, int]:
    """The place of a stream's entry among others; one that is not known comes before all."""
    milliseconds, _, sequence = entry.partition(b"-")
    return int(milliseconds or 0), int(sequence or 0)
