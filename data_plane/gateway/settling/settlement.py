"""Reservations from the moment they are made to the moment they are settled, and the retries.

A settlement is journalled and sent to Redis at once; whoever waits for it waits for Redis, or for the journal where
Redis does not answer. Meanwhile settlements wait in memory as well, up to a bound at which they are logged in full.
"""

import asyncio
import time
from collections import ChainMap, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec
import structlog
from redis.exceptions import RedisError, ResponseError

from core.contracts import UsageEvent
from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.authenticate import Caller
from data_plane.gateway.quota.redis_memory import RedisMemory
from data_plane.gateway.quota.reservation import Checkpoint, Reservations, Settlement
from data_plane.gateway.settling.journal import Journal

_log = structlog.get_logger()


class Running(Protocol):
    """A request on a replica, as those see it who watch over it."""

    @property
    def caller(self) -> Caller:
        """Whose it is."""

    def cut_off(self, error: AppError) -> None:
        """End it, and tell its caller why."""

    def tokens(self) -> int:
        """Tokens that the engine has counted so far."""

    def checkpoint(self) -> Checkpoint | None:
        """What it would be charged for now; None before there is anything."""


class Hold:
    """What a running request holds; ``replica_id`` changes when the request moves. Times are monotonic."""

    __slots__ = (
        "checkpoint_at", "checkpoint_tokens", "pages", "renewed_at", "replica_id", "request_id", "running", "tenant_id",
    )  # fmt: skip

    def __init__(self, request_id: str, tenant_id: str, replica_id: str, pages: int) -> None:
        self.request_id = request_id
        self.tenant_id = tenant_id
        self.replica_id = replica_id
        self.pages = pages
        self.running: Running | None = None
        self.renewed_at = self.checkpoint_at = time.monotonic()
        self.checkpoint_tokens = 0


class Settler:
    """Settles each request once, for as long as it takes. What settled in the last ``kept_s`` is settled again where
    Redis may have forgotten it: a server that restarted may have lost its last second.
    """

    def __init__(
        self,
        reservations: Reservations,
        journal: Journal,
        memory: RedisMemory,
        *,
        deadline_s: float,
        retry_s: float,
        kept_s: float,
        backlog_max: int,
    ) -> None:
        self._reservations = reservations
        self._journal = journal
        self._memory = memory
        self._generation = 0
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._kept_s = kept_s
        self._backlog_max = backlog_max
        self._backlog: deque[Settlement] = deque()
        self._settled: deque[tuple[float, Settlement]] = deque()
        self._flushing = asyncio.Lock()
        self._live: dict[str, Hold] = {}
        self._waiting: dict[str, Hold] = {}
        self._held = ChainMap(self._live, self._waiting)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> Mapping[str, Hold]:
        """What running requests hold, by request id."""
        return MappingProxyType(self._live)

    @property
    def held(self) -> Mapping[str, Hold]:
        """The same, and what ended requests hold whose settlement waits for Redis."""
        return MappingProxyType(self._held)

    def hold(self, hold: Hold) -> None:
        """Keep a new reservation alive until it is settled."""
        self._live[hold.request_id] = hold
        metrics.running.set(len(self._live))

    def let_go(self, hold: Hold) -> None:
        """Renew what cannot be settled no more: its lease runs out, and its last checkpoint is charged."""
        self._live.pop(hold.request_id, None)
        metrics.running.set(len(self._live))

    async def settle(self, settlement: Settlement) -> None:
        """Settle now if Redis answers in time, else later. Goes on when the caller of this is cancelled."""
        task = asyncio.create_task(self._settle(settlement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    def settle_later(self, settlement: Settlement) -> None:
        """Put a settlement into the backlog, and keep what its request holds until then. At the backlog's bound it is
        logged, so that nothing is lost without a word.
        """
        if settlement.event is None and len(self._backlog) >= self._backlog_max // 2:
            return  # nothing is billed by it, and its lease runs out by itself: leave the room to those that bill
        if len(self._backlog) >= self._backlog_max:
            self._lost("settlement dropped: backlog is full", settlement)
            return
        self._backlog.append(settlement)
        if hold := self._live.get(settlement.request_id):
            hold.running = None
            self._waiting[settlement.request_id] = hold
        metrics.settlement_backlog.set(len(self._backlog))

    async def follow_backlog(self) -> None:
        """Retry what is in the backlog, oldest first, for ever."""
        while True:
            await asyncio.sleep(self._retry_s)
            await self.look_back()
            await self.flush()

    async def look_back(self) -> None:
        """Forget what settled long enough ago. Where Redis may have forgotten it, settle the rest again."""
        generation, oldest = await self._memory.generation(), time.monotonic() - self._kept_s
        if generation not in (0, self._generation):
            self._generation = generation
            for _, settlement in self._settled:
                self.settle_later(settlement)
            self._settled.clear()
        while self._settled and (
            (generation != 0 and self._settled[0][0] < oldest) or len(self._settled) > self._backlog_max
        ):
            self._journal.done(self._settled.popleft()[1].request_id)

    async def flush(self) -> bool:
        """Settle the backlog until it is empty (True) or an attempt fails (False); another comes first then.

        One flush at a time: the head is removed by whoever tried it, never by another who meant an earlier one.
        """
        async with self._flushing:
            while self._backlog:
                if not await self.attempt(self._backlog[0]):
                    self._backlog.rotate(-1)
                    return False
                self._waiting.pop(self._backlog.popleft().request_id, None)
                metrics.settlement_backlog.set(len(self._backlog))
            return True

    async def drain(self, timeout_s: float) -> None:
        """Wait until every request has settled. What bills and is left at the end is logged in full."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            settled = not self._live and not self._tasks
            if settled and (await self.flush() or all(settlement.event is None for settlement in self._backlog)):
                for _, settlement in self._settled:
                    self._journal.done(settlement.request_id)
                return
            await asyncio.sleep(0.05)
        for settlement in self._backlog:
            if settlement.event is not None:
                self._lost("settlement lost at shutdown", settlement)
        if self._live:
            _log.critical("requests did not settle before shutdown", requests=list(self._live))

    async def attempt(self, settlement: Settlement) -> bool:
        """Settle in Redis once; False where it did not answer in time."""
        return await self._error_of(settlement) is None

    async def insist(self, settlement: Settlement) -> bool:
        """Settle in Redis, however long it is away; False where it is there and refuses this one."""
        while (error := await self._error_of(settlement)) is not None:
            if isinstance(error, ResponseError):
                return False
            await asyncio.sleep(self._retry_s)
        return True

    async def bill(self, event: UsageEvent) -> None:
        """Tell billing of a request that may have settled long ago, however long Redis is away; no quota counts it."""
        while True:
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await self._reservations.bill(event)
            except (RedisError, OSError) as error:
                _log.warning("a bill waits for Redis", request_id=event.request_id, error=repr(error))
            await asyncio.sleep(self._retry_s)

    async def _error_of(self, settlement: Settlement) -> Exception | None:
        try:
            async with asyncio.timeout(self._deadline_s):
                if not await self._reservations.settle(settlement):
                    _log.info("request had settled before", request_id=settlement.request_id)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("settlement waits for Redis", request_id=settlement.request_id, error=repr(error))
            return error
        if settlement.event is not None:
            self._settled.append((time.monotonic(), settlement))
        return None

    async def _settle(self, settlement: Settlement) -> None:
        try:
            journalled = None if settlement.event is None else self._journal.append(settlement)
            if not await self.attempt(settlement):
                self.settle_later(settlement)
                if journalled is not None:
                    await asyncio.wait((journalled,), timeout=self._deadline_s)
        finally:
            self._live.pop(settlement.request_id, None)
            metrics.running.set(len(self._live))

    def _lost(self, what: str, settlement: Settlement) -> None:
        """Say that this process gives a settlement up; the next one has it where the journal does."""
        if self._journal.holds(settlement.request_id):
            _log.error("settlement is left to the journal", request_id=settlement.request_id, why=what)
            return
        metrics.settlements_lost.inc()
        settled = None if settlement.event is None else msgspec.to_builtins(settlement.event)
        _log.critical(what, request_id=settlement.request_id, settlement=settled)
