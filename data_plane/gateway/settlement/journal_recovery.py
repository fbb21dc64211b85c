"""Settles the journals of this machine's dead gateway processes: at the start, and later when a sibling dies.

A settlement that Redis already has changes nothing until its settled marker expires. After that, quotas could count it
twice, so the settler sends it only to billing, which ignores requests that it has recorded. ``journal`` has the format.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Settlement
from data_plane.gateway.settlement.journal import Journal, lock, read_records, segments
from data_plane.gateway.settlement.settler import Settler

_log = structlog.get_logger()
_LOCK_SUFFIX: Final = ".lock"


class JournalRecovery:
    """Finds journals whose process is dead. Only the process that holds a journal's lock settles it."""

    def __init__(self, own: Journal, settler: Settler, *, every_s: float) -> None:
        self._own = own
        self._settler = settler
        self._every_s = every_s

    async def run_forever(self) -> None:
        """Recover journals periodically until cancelled."""
        while True:
            try:
                await self.run_once()
            except OSError as error:
                _log.error("journal recovery failed", error=repr(error))
            await asyncio.sleep(self._every_s)

    async def run_once(self) -> int:
        """Settle every journal that no live process holds. Returns the number of settlements in the journals that it
        deleted. Raises OSError.
        """
        count = 0
        for path in sorted(self._own.folder.glob(f"*{_LOCK_SUFFIX}")):
            name = path.name.removesuffix(_LOCK_SUFFIX)
            if name == self._own.name:
                continue
            try:
                count += await self._recover(path, name)
            except OSError as error:  # of this journal only: the next ones are still settled
                _log.error("journal of a dead process unreadable", journal=name, error=repr(error))
        return count

    async def _recover(self, path: Path, name: str) -> int:
        if (descriptor := lock(path)) is None:
            return 0
        try:
            return await self._settle(path, name)
        finally:
            os.close(descriptor)

    async def _settle(self, held: Path, name: str) -> int:
        """Settle one process's journal, however long Redis is unreachable, then delete its segments and its lock. Where
        neither Redis nor this process's journal accepts every settlement, the journal stays for the next round.
        """
        paths = segments(self._own.folder, name)
        left = await asyncio.to_thread(_left, paths)
        journalled, refused = None, []
        for settlement in left:
            # This process is responsible from now on, until billing has recorded it.
            journalled = self._own.append(settlement) or journalled
            if not await self._settler.replay(settlement):
                refused.append(settlement)
            metrics.JOURNAL_REPLAYS.inc()
        if journalled is not None:
            await asyncio.wait((journalled,))
        ours = [settlement for settlement in refused if self._own.holds(settlement.request_id)]
        if len(ours) < len(refused):
            _log.error("journal of a dead process not recovered", journal=name)
            return 0
        for settlement in ours:
            self._settler.replay_later(settlement)
        if left:
            _log.warning("journal of a dead process recovered", journal=name, settlements=len(left))
        for path in (*paths, held):
            path.unlink(missing_ok=True)
        return len(left)


def _left(paths: list[Path]) -> list[Settlement]:
    """The settlements in a process's segments that are not marked done, in order. Blocking: run it in a thread."""
    found: dict[str, Settlement] = {}
    for path in paths:
        for record in read_records(path.read_bytes()):
            if record.settlement is not None:
                found[record.settlement.request_id] = record.settlement
            else:
                found.pop(record.done, None)
    return list(found.values())
