"""Decides which download runs next: a number of slots in total and per owner, round robin between the owners that wait.

An owner is any string; the caller knows what it stands for. A stalled download keeps its owner's slot but lends its
common slot to others, so that slow objects of some owners do not block the rest. Fails closed: beyond the limits on
waiting downloads an owner is refused at once, owners with the longest queues first. For one event loop.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from adapters import metrics
from adapters.object_store.download_progress import Download, DownloadStopped

_LOOK_S: Final = 0.25  # between two checks for stalled downloads, while others wait


class DownloadQueueBounds(msgspec.Struct, frozen=True, kw_only=True):
    """``running`` and ``waiting`` downloads in total and per owner; ``stalled`` more may run while they receive
    nothing.
    """

    running: int
    running_per_owner: int
    stalled: int
    stall_s: float
    waiting: int
    waiting_per_owner: int


class DownloadQueueFull(Exception):
    """Too many downloads wait already. ``of_owner`` says whether the owner's own limit was reached."""

    def __init__(self, *, of_owner: bool) -> None:
        super().__init__("too many downloads wait")
        self.of_owner = of_owner


class _Waiter:
    def __init__(self, owner: str, download: Download) -> None:
        self.owner, self.download = owner, download
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _stopped() -> DownloadStopped:
    return DownloadStopped("the download was stopped before its turn")


class DownloadQueue:
    """Use ``async with queue.slot(owner, download)`` around each download."""

    def __init__(self, bounds: DownloadQueueBounds) -> None:
        self._bounds = bounds
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._running: set[_Waiter] = set()
        self._of_owner: Counter[str] = Counter()
        self._next_look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(self, owner: str, download: Download) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises ``DownloadQueueFull`` instead of waiting beyond the bounds, and
        ``DownloadStopped`` for a download that was stopped before it came here.
        """
        if download.stop.is_set():
            raise _stopped()
        if len(self._waiting.get(owner, ())) >= self._bounds.waiting_per_owner:
            raise DownloadQueueFull(of_owner=True)
        if self._count_waiting() >= self._bounds.waiting:
            self._make_place(owner)
        waiter = _Waiter(owner, download)
        self._waiting.setdefault(owner, deque()).append(waiter)
        self._dispatch()
        try:
            with metrics.DOWNLOAD_WAIT_SECONDS.time():
                await waiter.granted
            yield
        finally:
            self._leave(waiter)

    def rounds_ahead(self, download: Download) -> float:
        """How many downloads come before this one in the slot it will get; 0 once it runs."""
        waiter, place = self._find(download)
        if waiter is None:
            return 0.0
        before_me = sum(min(len(others), place + 1) for key, others in self._waiting.items() if key != waiter.owner)
        return max(
            (place + 1) / self._bounds.running_per_owner,
            (place + 1 + before_me) / self._bounds.running,
        )

    def share(self, owner: str, download: Download) -> None:
        """``owner`` wants this download too. If it still waits behind others of its first owner, running or waiting, it
        moves to the owner with fewer downloads before it.
        """
        waiter, place = self._find(download)
        if waiter is not None and self.downloads_of(owner) < place + self._of_owner[waiter.owner]:
            self._waiting[waiter.owner].remove(waiter)
            self._drop_if_empty(waiter.owner)
            waiter.owner = owner
            self._waiting.setdefault(owner, deque()).append(waiter)
            self._dispatch()

    def downloads_of(self, owner: str) -> int:
        """How many of the owner's downloads run or wait."""
        return self._of_owner[owner] + len(self._waiting.get(owner, ()))

    def withdraw(self, download: Download) -> None:
        """End the wait of a download that was stopped."""
        waiter, _ = self._find(download)
        if waiter is not None and not waiter.granted.done():
            waiter.granted.set_exception(_stopped())

    def _find(self, download: Download) -> tuple[_Waiter | None, int]:
        for queue in self._waiting.values():
            for place, waiter in enumerate(queue):
                if waiter.download is download:
                    return waiter, place
        return None, 0

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._running:
            self._running.remove(waiter)
            self._of_owner[waiter.owner] -= 1
            if not self._of_owner[waiter.owner]:
                del self._of_owner[waiter.owner]
        elif waiter in self._waiting.get(waiter.owner, ()):  # cancelled while it waited
            self._waiting[waiter.owner].remove(waiter)
            self._drop_if_empty(waiter.owner)
        self._dispatch()

    def _make_place(self, owner: str) -> None:
        """Refuse the last download of the longest queue, so that long queues cannot keep others from waiting at all."""
        longest = max(self._waiting, key=lambda other: len(self._waiting[other]))
        if len(self._waiting[longest]) <= len(self._waiting.get(owner, ())) + 1:
            raise DownloadQueueFull(of_owner=False)
        last = self._waiting[longest].pop()
        if not last.granted.done():
            last.granted.set_exception(DownloadQueueFull(of_owner=False))

    def _dispatch(self) -> None:
        """Assign free slots, one owner after the other."""
        while self._has_room() and (owner := self._next_owner()) is not None:
            waiter = self._waiting[owner].popleft()
            self._waiting.move_to_end(owner)
            self._drop_if_empty(owner)
            self._running.add(waiter)
            self._of_owner[owner] += 1
            if not waiter.granted.done():
                waiter.granted.set_result(None)
        self._show()
        self._look_again()

    def _has_room(self) -> bool:
        moving = sum(not waiter.download.is_stalled(self._bounds.stall_s) for waiter in self._running)
        return moving < self._bounds.running and len(self._running) < self._bounds.running + self._bounds.stalled

    def _next_owner(self) -> str | None:
        return next((owner for owner in self._waiting if self._may_run(owner)), None)

    def _may_run(self, owner: str) -> bool:
        return self._of_owner[owner] < self._bounds.running_per_owner

    def _drop_if_empty(self, owner: str) -> None:
        if not self._waiting[owner]:
            del self._waiting[owner]

    def _look_again(self) -> None:
        if self._next_owner() is not None and self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._next_look = None
        self._dispatch()

    def _count_waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    def _show(self) -> None:
        blocked = sum(len(queue) for owner, queue in self._waiting.items() if not self._may_run(owner))
        metrics.DOWNLOADS_WAITING.labels("owner").set(blocked)
        metrics.DOWNLOADS_WAITING.labels("slots").set(self._count_waiting() - blocked)
        metrics.DOWNLOADS_RUNNING.set(len(self._running))
