"""Reservations from the moment they are made to the moment they are settled: their leases, and the retries.

While Redis is away settlements wait in memory, up to a bound at which they are logged in full. A journal that would
survive this process is not here.
"""

import asyncio
from collections import deque

import msgspec
import structlog
from redis.exceptions import RedisError

from data_plane.gateway import metrics
from data_plane.gateway.reservation import Reservations, Settlement

_log = structlog.get_logger()


class Hold:
    """What a running request holds; ``replica_id`` changes when the request moves."""

    __slots__ = ("pages", "replica_id", "request_id", "tenant_id")

    def __init__(self, request_id: str, tenant_id: str, replica_id: str, pages: int) -> None:
        self.request_id = request_id
        self.tenant_id = tenant_id
        self.replica_id = replica_id
        self.pages = pages


class Settler:
    """Keeps leases alive and settles, once each, for as long as it takes."""

    def __init__(
        self, reservations: Reservations, *, renewal_s: float, deadline_s: float, retry_s: float, backlog_max: int
    ) -> None:
        self._reservations = reservations
        self._renewal_s = renewal_s
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._backlog_max = backlog_max
        self._backlog: deque[Settlement] = deque()
        self._flushing = asyncio.Lock()
        self._live: dict[str, Hold] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self, hold: Hold) -> None:
        """Keep the lease of a new reservation until it is settled."""
        self._live[hold.request_id] = hold
        metrics.running.set(len(self._live))

    async def settle(self, settlement: Settlement) -> None:
        """Settle now if Redis answers in time, else later. Goes on when the caller of this is cancelled."""
        task = asyncio.create_task(self._settle(settlement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    def settle_later(self, settlement: Settlement) -> None:
        """Put a settlement into the backlog. At its bound it is logged, so that nothing is lost without a word."""
        if settlement.event is None and len(self._backlog) >= self._backlog_max // 2:
            return  # nothing is billed by it, and its lease runs out by itself: leave the room to those that bill
        if len(self._backlog) >= self._backlog_max:
            metrics.settlements_lost.inc()
            _log.critical("settlement dropped: backlog is full", settlement=msgspec.to_builtins(settlement.event))
            return
        self._backlog.append(settlement)
        metrics.settlement_backlog.set(len(self._backlog))

    async def follow_leases(self) -> None:
        """Renew every live lease again and again, for ever."""
        while True:
            await asyncio.sleep(self._renewal_s)
            groups: dict[tuple[str, str], list[str]] = {}
            for hold in self._live.values():
                groups.setdefault((hold.tenant_id, hold.replica_id), []).append(hold.request_id)
            if not groups:
                continue
            try:
                missing = await self._reservations.renew(groups)
            except (RedisError, OSError) as error:
                _log.warning("leases cannot be renewed", live=len(self._live), error=repr(error))
                continue
            if missing:
                metrics.leases_missing.inc(missing)
                _log.warning("leases had run out before they were renewed", missing=missing)

    async def follow_backlog(self) -> None:
        """Retry what is in the backlog, oldest first, for ever."""
        while True:
            await asyncio.sleep(self._retry_s)
            await self.flush()

    async def flush(self) -> bool:
        """Settle the backlog until it is empty (True) or an attempt fails (False); another comes first then.

        One flush at a time: the head is removed by whoever tried it, never by another who meant an earlier one.
        """
        async with self._flushing:
            while self._backlog:
                if not await self._try(self._backlog[0]):
                    self._backlog.rotate(-1)
                    return False
                self._backlog.popleft()
                metrics.settlement_backlog.set(len(self._backlog))
            return True

    async def drain(self, timeout_s: float) -> None:
        """Wait until every request has settled. What bills and is left at the end is logged in full."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            settled = not self._live and not self._tasks
            if settled and (await self.flush() or all(settlement.event is None for settlement in self._backlog)):
                return
            await asyncio.sleep(0.05)
        for settlement in self._backlog:
            if settlement.event is not None:
                metrics.settlements_lost.inc()
                _log.critical(
                    "settlement lost at shutdown",
                    request_id=settlement.request_id,
                    settlement=msgspec.to_builtins(settlement.event),
                )
        if self._live:
            _log.critical("requests did not settle before shutdown", requests=list(self._live))

    async def _settle(self, settlement: Settlement) -> None:
        try:
            if not await self._try(settlement):
                self.settle_later(settlement)
        finally:
            self._live.pop(settlement.request_id, None)
            metrics.running.set(len(self._live))

    async def _try(self, settlement: Settlement) -> bool:
        try:
            async with asyncio.timeout(self._deadline_s):
                if not await self._reservations.settle(settlement):
                    _log.info("request had settled before", request_id=settlement.request_id)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("settlement waits for Redis", request_id=settlement.request_id, error=repr(error))
            return False
        return True
