"""Tracks reservations from their creation until they are settled, and retries settlements.

A settlement is journaled and sent to Redis at once; the caller waits for Redis, or for the journal where Redis does not
answer. Unsettled ones also wait in memory, up to a bound; above it they are logged in full. Redis may lose a settlement
that it has, so the replay buffer holds it until billing has recorded it. The Redis scripts are in ``quota``.
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
from data_plane.gateway.settlement.redis_data_loss import RedisDataLossDetector
from data_plane.gateway.settlement.replay_buffer import ReplayBuffer
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_clock import RedisClock

_REFUSED_AT_ONCE_MAX: Final = 20  # above this number the cause is Redis, not the settlements

_log = structlog.get_logger()


class Running(Protocol):
    """A request on a replica, as checkpoints and the access watch use it."""

    @property
    def caller(self) -> Caller:
        """The caller that sent the request."""

    def cut_off(self, error: AppError) -> None:
        """End the request and send ``error`` to its caller."""

    def tokens(self) -> int:
        """Tokens that the engine has counted so far."""

    def checkpoint(self) -> Checkpoint | None:
        """The usage to charge if the request ended now; None while there is none."""


class Hold:
    """The holds of a running request; ``replica_id`` changes when the request moves. Times are monotonic. ``taken`` is
    its reservation, which restores the holds where Redis loses them.
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
    """Settles each request once, and retries until it succeeds. Buffered settlements are replayed where Redis may have
    lost them: a restarted server may have lost its last second or all data. The settled marker, which makes a replay
    harmless, expires after ``marker_s``.
    """

    def __init__(  # noqa: PLR0913 - the parts that keep a settlement safe, built once by wiring
        self,
        reservations: Reservations,
        journal: Journal,
        data_loss: RedisDataLossDetector,
        replays: ReplayBuffer,
        clock: RedisClock,
        *,
        deadline_s: float,
        retry_s: float,
        marker_s: int,
        backlog_max: int,
    ) -> None:
        self._reservations = reservations
        self._journal = journal
        self._data_loss = data_loss
        self._replays = replays
        self._clock = clock
        self._generation = 0
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._marker_ms = marker_s * 1000
        self._backlog_max = backlog_max
        self._backlog: deque[Settlement] = deque()
        self._replaying: deque[Settlement] = deque()
        self._flushing = asyncio.Lock()
        self._live: dict[str, Hold] = {}
        self._waiting: dict[str, Hold] = {}
        self._running: dict[str, Running] = {}

    @property
    def running(self) -> Mapping[str, Running]:
        """The running requests, by the request id of their hold."""
        return MappingProxyType(self._running)

    def held(self) -> Mapping[str, Hold]:
        """The holds of live requests, and of ended requests whose settlement waits for Redis."""
        return self._live | self._waiting

    def hold(self, hold: Hold) -> None:
        """Keep a new reservation alive until it is settled."""
        self._live[hold.request_id] = hold
        metrics.RUNNING_REQUESTS.set(len(self._live))

    def attach(self, hold: Hold, running: Running) -> None:
        """Register the request that runs with this hold, until it is released or settled."""
        self._running[hold.request_id] = running

    def release(self, hold: Hold) -> None:
        """Stop renewing a reservation that can no longer be settled; its lease expires and its last checkpoint is
        billed. Changes nothing once the request has settled.
        """
        self._running.pop(hold.request_id, None)
        self._live.pop(hold.request_id, None)
        metrics.RUNNING_REQUESTS.set(len(self._live))

    async def settle(self, settlement: Settlement) -> None:
        """Settle now if Redis answers in time, otherwise later; also later where the calling task is cancelled."""
        try:
            journalled = None if settlement.event is None else self._journal.append(settlement)
            if not await self.attempt(settlement):
                self.settle_later(settlement)
                if journalled is not None:
                    await asyncio.wait((journalled,), timeout=self._deadline_s)
        except asyncio.CancelledError:
            self.settle_later(settlement)  # a second settlement changes nothing
            raise
        finally:
            self._running.pop(settlement.request_id, None)
            self._live.pop(settlement.request_id, None)
            metrics.RUNNING_REQUESTS.set(len(self._live))

    def settle_later(self, settlement: Settlement) -> None:
        """Put a settlement into the backlog; its request keeps its holds until it settles. At the backlog's bound the
        settlement is logged in full, so that nothing is lost silently.
        """
        if settlement.event is None and len(self._backlog) >= self._backlog_max // 2:
            return  # it bills nothing and its lease expires: leave the room to billed settlements
        if len(self._backlog) >= self._backlog_max:
            self._lost("settlement dropped: backlog is full", settlement)
            return
        self._backlog.append(settlement)
        self._running.pop(settlement.request_id, None)
        if hold := self._live.get(settlement.request_id):
            self._waiting[settlement.request_id] = hold
        metrics.SETTLEMENT_BACKLOG.set(len(self._backlog))

    async def run_forever(self) -> None:
        """Retry the backlog, oldest first, and refresh the replays, until cancelled."""
        while True:
            await asyncio.sleep(self._retry_s)
            await self.refresh_replays()
            await self.flush()

    async def refresh_replays(self, *, at_end: bool = False) -> None:
        """Evict the buffered settlements that billing has recorded (``at_end``: however new they are). Where Redis may
        have lost the rest, schedule them for a replay.
        """
        generation = await self._data_loss.generation()
        if generation == 0:
            return
        if generation != self._generation:
            self._generation = generation
            self._replaying.extend(self._replays.pop_all())
        await self._replays.evict(await self._data_loss.recorded(), at_end=at_end)

    async def flush(self) -> bool:
        """Try each waiting settlement once. Returns whether none waits now. A settlement that Redis rejects does not
        block the others. Where Redis rejects many, or does not answer, the rest waits for the next flush, which starts
        with another settlement.

        One flush runs at a time, so that only the flush that tried the head of the queue removes it.
        """
        async with self._flushing:
            for waiting, attempt in ((self._backlog, self._error_of), (self._replaying, self._repeat)):
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
            return not self._backlog and not self._replaying

    async def drain(self, timeout_s: float) -> None:
        """Wait until every request has settled, for at most ``timeout_s``. Billed settlements that are left are logged
        in full. The next process finds in the journal the settlements that are not in the ledger by then.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            if not self._live and (await self.flush() or not self._unsafe()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._deadline_s):
                        await self.refresh_replays(at_end=True)
                break
            await asyncio.sleep(0.05)
        for settlement in (
            *self._backlog,
            *(one for one in self._replaying if not self._journal.holds(one.request_id)),
        ):
            if settlement.event is not None:
                self._lost("settlement lost at shutdown", settlement)
        if self._live:
            _log.critical("requests did not settle before shutdown", requests=list(self._live))

    def _unsafe(self) -> bool:
        """Whether a billed settlement waits for Redis that the next process would not find in the journal."""
        return any(settlement.event is not None for settlement in self._backlog) or any(
            not self._journal.holds(settlement.request_id) for settlement in self._replaying
        )

    async def attempt(self, settlement: Settlement) -> bool:
        """Settle in Redis once. Returns False where Redis did not answer in time."""
        return await self._error_of(settlement) is None

    async def replay(self, settlement: Settlement) -> bool:
        """Settle for a dead process, however long Redis is unreachable. Returns False where Redis rejects it."""
        while (error := await self._repeat(settlement)) is not None:
            if isinstance(error, ResponseError):
                return False
            await asyncio.sleep(self._retry_s)
        return True

    def replay_later(self, settlement: Settlement) -> None:
        """Schedule a settlement that the journal holds and that may have settled before; retried until it succeeds."""
        self._replaying.append(settlement)

    async def _repeat(self, settlement: Settlement) -> Exception | None:
        """Settle a request that may have settled before. Returns None, or the error. Where the request is so old that
        its settled marker may have expired, only billing gets the event: billing ignores recorded events, and it
        restores the quota usage that Redis lost.
        """
        event = settlement.event
        assert event is not None, "only billed settlements are buffered and journaled"
        if self._clock.now_ms() - event.settled_at_ms < self._marker_ms:
            return await self._error_of(settlement)
        try:
            async with asyncio.timeout(self._deadline_s):
                entry = await self._reservations.bill(event, settlement.details)
        except (RedisError, OSError) as error:
            _log.warning("billing replay failed", request_id=event.request_id, error=repr(error))
            return error
        metrics.JOURNAL_EXPIRED_REPLAYS.inc()
        self._replays.add(settlement, entry)
        return None

    async def _error_of(self, settlement: Settlement) -> Exception | None:
        try:
            settled = await self._reservations.settle(settlement, within_s=self._deadline_s)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("settlement failed", request_id=settlement.request_id, error=repr(error))
            return error
        if not settled:
            _log.info("settlement repeated", request_id=settlement.request_id)
        if settlement.event is not None:
            self._replays.add(settlement, settled.entry)
        return None

    def _lost(self, what: str, settlement: Settlement) -> None:
        """Log that this process drops a settlement; the next process has it where the journal holds it."""
        if self._journal.holds(settlement.request_id):
            _log.error("settlement left to the journal", request_id=settlement.request_id, reason=what)
            return
        metrics.SETTLEMENTS_LOST.inc()
        settled = None if settlement.event is None else msgspec.to_builtins(settlement.event)
        _log.critical(what, request_id=settlement.request_id, settlement=settled)
