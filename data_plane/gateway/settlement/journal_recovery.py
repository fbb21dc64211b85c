"""Settles what dead gateway processes of this machine had journalled: at the start, and again as siblings die.

A settlement that Redis has already changes nothing, for as long as its marker lives. Of an older one nobody could tell
whether quotas would count it twice: billing alone is told of it, which knows every request that it has recorded.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Settlement
from data_plane.gateway.settlement.journal import Journal, lock, read, segments
from data_plane.gateway.settlement.settler import Settler

_log = structlog.get_logger()
_LOCK_SUFFIX: Final = ".lock"


class Takeover:
    """Looks for journals whose process is gone. Whoever holds the lock of one is the only one to settle it."""

    def __init__(self, own: Journal, settler: Settler, *, every_s: float) -> None:
        self._own = own
        self._settler = settler
        self._every_s = every_s

    async def run_forever(self) -> None:
        """Look again and again, for ever."""
        while True:
            try:
                await self.look()
            except OSError as error:
                _log.error("journals of dead processes cannot be read", error=repr(error))
            await asyncio.sleep(self._every_s)

    async def look(self) -> int:
        """Settle every journal that nobody holds; returns how many settlements were in those that are gone now. Raises
        OSError.
        """
        count = 0
        for path in sorted(self._own.folder.glob(f"*{_LOCK_SUFFIX}")):
            name = path.name.removesuffix(_LOCK_SUFFIX)
            if name == self._own.name:
                continue
            try:
                count += await self._take(path, name)
            except OSError as error:  # of this one alone: those behind it are settled
                _log.error("the journal of a dead process cannot be read", journal=name, error=repr(error))
        return count

    async def _take(self, path: Path, name: str) -> int:
        if (descriptor := lock(path)) is None:
            return 0
        try:
            return await self._settle(path, name)
        finally:
            os.close(descriptor)

    async def _settle(self, held: Path, name: str) -> int:
        """Settle one process's journal, however long Redis is away, then delete its segments and its lock. Where
        neither Redis nor our own journal takes all of it, it stays for the next look.
        """
        paths = segments(self._own.folder, name)
        left = await asyncio.to_thread(_left, paths)
        journalled, refused = None, []
        for settlement in left:
            # Ours from now on, until billing has recorded it.
            journalled = self._own.append(settlement) or journalled
            if not await self._settler.take_over(settlement):
                refused.append(settlement)
            metrics.JOURNAL_REPLAYS.inc()
        if journalled is not None:
            await asyncio.wait((journalled,))
        ours = [settlement for settlement in refused if self._own.holds(settlement.request_id)]
        if len(ours) < len(refused):
            _log.error("the journal of a dead process stays: Redis refuses it and ours cannot take it", journal=name)
            return 0
        for settlement in ours:
            self._settler.settle_again(settlement)
        if left:
            _log.warning("took over the journal of a dead process", journal=name, settlements=len(left))
        for path in (*paths, held):
            path.unlink(missing_ok=True)
        return len(left)


def _left(paths: list[Path]) -> list[Settlement]:
    """What is not marked done in a process's segments, in order. In a thread."""
    found: dict[str, Settlement] = {}
    for path in paths:
        for line in read(path.read_bytes()):
            if line.settlement is not None:
                found[line.settlement.request_id] = line.settlement
            else:
                found.pop(line.done, None)
    return list(found.values())
