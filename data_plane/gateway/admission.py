"""Where a request gets its place: a replica with room and a reservation that covers it, a bounded wait, or a refusal.

Fails closed: when Redis does not answer in time nobody is admitted. Who waits for one base model is served in order.
"""

import asyncio
import time
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from core import kv_pages
from core.contracts import Limits, ReplicaStatus
from core.errors import InvalidRequest, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.limits import REPLICA_PAGES, Verdict, quota_exceeded
from data_plane.gateway.placement import Wish, choose
from data_plane.gateway.replicas import Replicas
from data_plane.gateway.reservation import Ask, Reservations, Settlement
from data_plane.gateway.settlement import Hold, Settler

_log = structlog.get_logger()
_PEEK = -1  # no replica has so few pages: only the tenant's limits are asked
_NO_REPLICA_RETRY_S = 2.0
_FULL_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request needs at most: ``sequence_tokens`` is prompt plus max_tokens of each of its ``sequences``, and
    ``rank`` that of its adapter (0 for a base model).
    """

    request_id: str
    tenant_id: str
    limits: Limits
    base_model: str
    engine_name: str
    sequences: int
    sequence_tokens: int
    rank: int = 0

    @property
    def tokens(self) -> int:
        return self.sequences * self.sequence_tokens

    def pages(self, block_tokens: int) -> int:
        """KV pages on an engine with blocks of this size."""
        return self.sequences * kv_pages.pages_for(self.sequence_tokens, block_tokens)


@dataclass(frozen=True, slots=True)
class Place:
    """A replica, the hold on it, and what the rate limits say now."""

    replica: ReplicaStatus
    hold: Hold
    verdict: Verdict


class _Queue:
    """The requests that wait for one base model; whoever has the lock is at its head."""

    def __init__(self) -> None:
        self.head = asyncio.Lock()
        self.length = 0


class Admission:
    """Places requests. ``waiting_max`` bounds all queues of this process together."""

    def __init__(
        self,
        replicas: Replicas,
        reservations: Reservations,
        settler: Settler,
        *,
        deadline_ms: int,
        waiting_max: int,
        wait_s: float,
        poll_ms: int,
    ) -> None:
        self._replicas = replicas
        self._reservations = reservations
        self._settler = settler
        self._deadline_s = deadline_ms / 1000
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self._poll_s = poll_ms / 1000
        self._queues: dict[str, _Queue] = {}
        self._waiting = 0

    async def admit(self, demand: Demand) -> Place:
        """A place. Raises QuotaExceeded, Unavailable, or InvalidRequest for what no replica can hold."""
        queue = self._queues.setdefault(demand.base_model, _Queue())
        # Who waits already goes first; a tenant that is over its limits is told so without waiting.
        if place := await self._attempt(demand, peek=queue.length > 0):
            return place
        if self._waiting >= self._waiting_max:
            raise _full()
        self._waiting += 1
        queue.length += 1
        metrics.waiting.set(self._waiting)
        try:
            async with asyncio.timeout(self._wait_s), queue.head:
                while True:
                    await asyncio.sleep(self._poll_s)
                    if place := await self._attempt(demand, peek=False):
                        return place
        except TimeoutError:
            raise _full() from None
        finally:
            queue.length -= 1
            self._waiting -= 1
            metrics.waiting.set(self._waiting)

    async def move(self, demand: Demand, place: Place, tried: frozenset[str]) -> Place | None:
        """A place on another replica for a request whose replica failed; None where there is none."""
        for replica in self._choose(demand, tried):
            pages = demand.pages(replica.block_tokens)
            try:
                async with asyncio.timeout(self._deadline_s):
                    moved = await self._reservations.move(
                        demand.request_id,
                        pages,
                        old_replica_id=place.hold.replica_id,
                        replica_id=replica.id,
                        replica_pages_max=replica.pages_total,
                    )
            except (RedisError, OSError):
                return None
            if moved:
                place.hold.replica_id = replica.id
                return Place(replica, place.hold, place.verdict)
        return None

    def _choose(self, demand: Demand, tried: frozenset[str] = frozenset()) -> list[ReplicaStatus]:
        alive = self._replicas.alive()
        block_tokens = min((candidate.status.block_tokens for candidate in alive), default=kv_pages.PAGE_TOKENS)
        pages = demand.pages(block_tokens)
        wish = Wish(base_model=demand.base_model, engine_name=demand.engine_name, rank=demand.rank)
        return choose(alive, wish, pages=pages, tried=tried)

    async def _attempt(self, demand: Demand, *, peek: bool) -> Place | None:
        """Reserve on the best replica that has room; None where the tenant may but no replica has room."""
        replicas = self._choose(demand)
        if not replicas:
            raise self._nowhere(demand)
        for replica in replicas[:1] if peek else replicas:
            pages = demand.pages(replica.block_tokens)
            verdict = await self._reserve(demand, replica, pages, _PEEK if peek else replica.pages_total)
            self._replicas.note_held(replica.id, verdict.replica_pages_held)
            if not verdict.blocked_by:
                hold = Hold(demand.request_id, demand.tenant_id, replica.id, pages)
                self._settler.hold(hold)
                return Place(replica, hold, verdict)
            if verdict.blocked_by != REPLICA_PAGES:
                raise quota_exceeded(verdict, demand.limits, tokens=demand.tokens, pages=pages)
        return None

    async def _reserve(self, demand: Demand, replica: ReplicaStatus, pages: int, pages_max: int) -> Verdict:
        ask = Ask(request_id=demand.request_id, tenant_id=demand.tenant_id, tokens=demand.tokens, pages=pages)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._reservations.reserve(
                    ask, demand.limits, replica_id=replica.id, replica_pages_max=pages_max
                )
        except BaseException as error:
            # The script may have run although its answer did not come: give back what it may have taken.
            self._settler.settle_later(
                Settlement(
                    request_id=demand.request_id,
                    tenant_id=demand.tenant_id,
                    replica_id=replica.id,
                    used_tokens=0,
                    event=None,
                )
            )
            if isinstance(error, RedisError | OSError):
                _log.warning("reservation failed; nobody is admitted", error=repr(error))
                raise Unavailable(
                    "Quotas cannot be checked now; try again shortly.", code="quota_unavailable", retry_after_s=1
                ) from error
            raise
        finally:
            metrics.reserve_seconds.observe(time.monotonic() - began)

    def _nowhere(self, demand: Demand) -> InvalidRequest | Unavailable:
        ready = [
            candidate.status
            for candidate in self._replicas.alive()
            if candidate.status.base_model == demand.base_model
            and candidate.status.state == "ready"
            and candidate.status.rank_max >= demand.rank
        ]
        if not ready:
            fit = f" for adapters of rank {demand.rank}" if demand.rank else ""
            return Unavailable(
                f"No replica of `{demand.base_model}`{fit} is ready.",
                code="no_replica",
                retry_after_s=_NO_REPLICA_RETRY_S,
            )
        largest = max(ready, key=lambda status: status.pages_total)
        return InvalidRequest(
            f"The request may take {demand.pages(largest.block_tokens)} KV pages, and the largest replica has "
            f"{largest.pages_total}; lower max_tokens or n, or shorten the prompt.",
            code="request_exceeds_replica",
            param="max_tokens",
        )


def _full() -> Unavailable:
    return Unavailable("All replicas of this model are busy.", code="overloaded", retry_after_s=_FULL_RETRY_S)
