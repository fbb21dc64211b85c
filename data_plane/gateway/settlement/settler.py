"""Reservations from the moment they are made to the moment they are settled, and the retries.

A settlement is journalled and sent to Redis at once; whoever waits for it waits for Redis, or for the journal where
Redis does not answer. Meanwhile settlements wait in memory as well, up to a bound at which they are logged in full.
What Redis has it may forget, so it is ``kept`` until billing has recorded it.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
import structlog
from redis.exceptions import RedisError, ResponseError

from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.quota.allowance import Taken
from data_plane.gateway.quota.reservation import Checkpoint, Reservations, Settlement
from data_plane.gateway.settlement.journal import Journal
from data_plane.gateway.settlement.redis_data_loss import RedisMemory
from data_plane.gateway.settlement.replay_buffer import Kept
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_clock import RedisClock

_REFUSED_AT_ONCE_MAX: Final = 20  # more than that, and it is not they, but Redis

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
    """What a running request holds; ``replica_id`` changes when the request moves. Times are monotonic. ``taken`` is
    what it holds of quotas, for a Redis that forgets it.
    """

    __slots__ = (
        "checkpoint_at", "checkpoint_tokens", "pages", "renewed_at", "replica_id", "request_id", "taken", "tenant_id",
    )  # fmt: skip

    def __init__(
        self, request_id: str, tenant_id: str, replica_id: str, pages: int, taken: Taken | None = None
    ) -> None:
        self.taken = taken
        self.request_id = request_id
        self.tenant_id = tenant_id
        self.replica_id = replica_id
        self.pages = pages
        self.renewed_at = self.checkpoint_at = time.monotonic()
        self.checkpoint_tokens = 0


class Settler:
    """Settles each request once, for as long as it takes. What is kept is settled again where Redis may have forgotten
    it: a server that restarted may have lost its last second, or all. The marker of a settlement, which makes that
    harmless, lives for ``marker_s``.
    """

    def __init__(  # noqa: PLR0913 - what keeps a settlement safe, built once by wiring
        self,
        reservations: Reservations,
        journal: Journal,
        memory: RedisMemory,
        kept: Kept,
        clock: RedisClock,
        *,
        deadline_s: float,
        retry_s: float,
        marker_s: int,
        backlog_max: int,
    ) -> None:
        self._reservations = reservations
        self._journal = journal
        self._memory = memory
        self._kept = kept
        self._clock = clock
        self._generation = 0
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._marker_ms = marker_s * 1000
        self._backlog_max = backlog_max
        self._backlog: deque[Settlement] = deque()
        self._again: deque[Settlement] = deque()
        self._flushing = asyncio.Lock()
        self._live: dict[str, Hold] = {}
        self._waiting: dict[str, Hold] = {}
        self._running: dict[str, Running] = {}

    @property
    def running(self) -> Mapping[str, Running]:
        """The running requests, by the request id of their hold."""
        return MappingProxyType(self._running)

    def held(self) -> Mapping[str, Hold]:
        """The same as it is now, and what ended requests hold whose settlement waits for Redis."""
        return self._live | self._waiting

    def hold(self, hold: Hold) -> None:
        """Keep a new reservation alive until it is settled."""
        self._live[hold.request_id] = hold
        metrics.RUNNING_REQUESTS.set(len(self._live))

    def attach(self, hold: Hold, running: Running) -> None:
        """Watch over the request that runs with this hold, until it is released or settled."""
        self._running[hold.request_id] = running

    def release(self, hold: Hold) -> None:
        """Stop renewing a reservation that can no longer be settled; its lease expires and its last checkpoint is
        billed. Changes nothing once the request has settled.
        """
        self._running.pop(hold.request_id, None)
        self._live.pop(hold.request_id, None)
        metrics.RUNNING_REQUESTS.set(len(self._live))

    async def settle(self, settlement: Settlement) -> None:
        """Settle now if Redis answers in time, else later; later also where the caller of this is cancelled."""
        try:
            journalled = None if settlement.event is None else self._journal.append(settlement)
            if not await self.attempt(settlement):
                self.settle_later(settlement)
                if journalled is not None:
                    await asyncio.wait((journalled,), timeout=self._deadline_s)
        except asyncio.CancelledError:
            self.settle_later(settlement)  # where it has settled, once more changes nothing
            raise
        finally:
            self._running.pop(settlement.request_id, None)
            self._live.pop(settlement.request_id, None)
            metrics.RUNNING_REQUESTS.set(len(self._live))

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
        self._running.pop(settlement.request_id, None)
        if hold := self._live.get(settlement.request_id):
            self._waiting[settlement.request_id] = hold
        metrics.SETTLEMENT_BACKLOG.set(len(self._backlog))

    async def follow_backlog(self) -> None:
        """Retry what is in the backlog, oldest first, for ever."""
        while True:
            await asyncio.sleep(self._retry_s)
            await self.look_back()
            await self.flush()

    async def look_back(self, *, at_end: bool = False) -> None:
        """Forget what billing has recorded, at the end of this process however new it is. Where Redis may have
        forgotten the rest, that is settled again.
        """
        generation = await self._memory.generation()
        if generation == 0:
            return
        if generation != self._generation:
            self._generation = generation
            self._again.extend(self._kept.take())
        await self._kept.forget(await self._memory.recorded(), at_end=at_end)

    async def flush(self) -> bool:
        """Try once each that waits; whether nothing waits any more. What Redis refuses stops nobody else; where it
        refuses many, or does not answer, the rest waits for the next flush, which begins with another.

        One flush at a time: the head is removed by whoever tried it, never by another who meant an earlier one.
        """
        async with self._flushing:
            for waiting, attempt in ((self._backlog, self._error_of), (self._again, self._repeat)):
                refused = 0
                for _ in range(len(waiting)):
                    if refused == _REFUSED_AT_ONCE_MAX:
                        break
                    error = await attempt(waiting[0])
                    if error is None:
                        self._waiting.pop(waiting.popleft().request_id, None)
                        metrics.SETTLEMENT_BACKLOG.set(len(self._backlog))
                        continue
                    waiting.rotate(-1)
                    if not isinstance(error, ResponseError):
                        return False
                    refused += 1
            return not self._backlog and not self._again

    async def drain(self, timeout_s: float) -> None:
        """Wait until every request has settled. What bills and is left at the end is logged in full; what is not in
        the ledger by then the next process finds in the journal.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            if not self._live and (await self.flush() or not self._unsafe()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._deadline_s):
                        await self.look_back(at_end=True)
                break
            await asyncio.sleep(0.05)
        for settlement in (*self._backlog, *(one for one in self._again if not self._journal.holds(one.request_id))):
            if settlement.event is not None:
                self._lost("settlement lost at shutdown", settlement)
        if self._live:
            _log.critical("requests did not settle before shutdown", requests=list(self._live))

    def _unsafe(self) -> bool:
        """Whether something that bills waits for Redis which the next process would not find."""
        return any(settlement.event is not None for settlement in self._backlog) or any(
            not self._journal.holds(settlement.request_id) for settlement in self._again
        )

    async def attempt(self, settlement: Settlement) -> bool:
        """Settle in Redis once; False where it did not answer in time."""
        return await self._error_of(settlement) is None

    async def take_over(self, settlement: Settlement) -> bool:
        """Settle what a dead process left, however long Redis is away; False where Redis refuses it."""
        while (error := await self._repeat(settlement)) is not None:
            if isinstance(error, ResponseError):
                return False
            await asyncio.sleep(self._retry_s)
        return True

    def settle_again(self, settlement: Settlement) -> None:
        """Settle what our journal holds and may have settled before, beside others, for as long as it takes."""
        self._again.append(settlement)

    async def _repeat(self, settlement: Settlement) -> Exception | None:
        """Settle what may have settled before; None, or why it did not. Of one so old that its marker may be gone
        billing alone is told: it knows what it has recorded, and gives quotas back what Redis forgot.
        """
        event = settlement.event
        assert event is not None, "only what bills is kept and journalled"
        if self._clock.now_ms() - event.settled_at_ms < self._marker_ms:
            return await self._error_of(settlement)
        try:
            async with asyncio.timeout(self._deadline_s):
                entry = await self._reservations.bill(event)
        except (RedisError, OSError) as error:
            _log.warning("a bill waits for Redis", request_id=event.request_id, error=repr(error))
            return error
        metrics.JOURNAL_EXPIRED_REPLAYS.inc()
        self._kept.add(settlement, entry)
        return None

    async def _error_of(self, settlement: Settlement) -> Exception | None:
        try:
            settled = await self._reservations.settle(settlement, within_s=self._deadline_s)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("settlement waits for Redis", request_id=settlement.request_id, error=repr(error))
            return error
        if not settled:
            _log.info("request had settled before", request_id=settlement.request_id)
        if settlement.event is not None:
            self._kept.add(settlement, settled.entry)
        return None

    def _lost(self, what: str, settlement: Settlement) -> None:
        """Say that this process gives a settlement up; the next one has it where the journal does."""
        if self._journal.holds(settlement.request_id):
            _log.error("settlement is left to the journal", request_id=settlement.request_id, why=what)
            return
        metrics.SETTLEMENTS_LOST.inc()
        settled = None if settlement.event is None else msgspec.to_builtins(settlement.event)
        _log.critical(what, request_id=settlement.request_id, settlement=settled)
