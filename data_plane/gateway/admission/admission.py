"""Where a request gets its place: a replica with room and a reservation that covers it, a bounded wait, or a refusal.

Fails closed: when Redis does not answer in time nobody is admitted but by slices of quotas taken beforehand. Who waits,
and whose turn it is, is the waiting room's.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import UsageEvent
from core.errors import InvalidRequest, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.admission.fair_queue import service
from data_plane.gateway.admission.quota_slices import QuotaSlices
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.quota.rate_limit_response import REPLICA_PAGES, Verdict, quota_exceeded
from data_plane.gateway.quota.reservation import Ask, Reservations, Settlement
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settlement.settler import Hold, Settler

Watch = Callable[[Callable[[], None] | None], None]
_log = structlog.get_logger()
_PEEK = -1  # no replica has so few pages: only the tenant's limits are asked
_NO_REPLICA_RETRY_S = 2.0
_AT_ONCE_MAX = 3  # replicas asked before a request waits: each took pages since this process last heard of it


@dataclass(frozen=True, slots=True)
class Place:
    """A replica, the hold on it, what the rate limits say now, and what is counted there until it is over."""

    replica: ReplicaStatus
    hold: Hold
    verdict: Verdict
    seat: Assignment = field(repr=False)


class Admission:
    """Places requests."""

    def __init__(
        self,
        replicas: Replicas,
        reservations: Reservations,
        settler: Settler,
        room: WaitQueue,
        slices: QuotaSlices,
        *,
        deadline_ms: int,
    ) -> None:
        self._replicas = replicas
        self._reservations = reservations
        self._settler = settler
        self._room = room
        self._slices = slices
        self._deadline_s = deadline_ms / 1000

    async def admit(self, demand: Demand, watch: Watch) -> Place:
        """A place. Raises QuotaExceeded, Unavailable, InvalidRequest for what no replica can hold, or ClientGone for a
        caller who did not wait, as ``watch`` would tell.
        """
        for seat in itertools.islice(self._room.seats_at_once(demand), _AT_ONCE_MAX):
            if place := await self._take(demand, seat):
                return place
        entry = self._room.enter(demand)
        watch(lambda: self._room.hang_up(entry))
        try:
            try:
                await self._check(demand)
            except BaseException:
                self._room.leave(entry)
                raise
            while True:
                seat = await self._room.turn(entry)
                if place := await self._take(demand, seat):
                    return place
                self._room.put_back(entry, seat)
        finally:
            watch(None)

    async def move(self, demand: Demand, place: Place, tried: frozenset[str]) -> Place | None:
        """A place on another replica for a request whose replica failed; None where there is none."""
        ranking = self._room.ranking(demand, tried=tried, overdue=True)
        for candidate in [*ranking.now, *ranking.full][:_AT_ONCE_MAX]:
            replica, seat = candidate.status, self._room.seat(demand, candidate)
            moved = False
            try:
                async with asyncio.timeout(self._deadline_s):
                    moved = await self._reservations.move(
                        place.hold.request_id,
                        seat.stay.pages,
                        tenant_id=demand.tenant_id,
                        old_replica_id=place.hold.replica_id,
                        replica_id=replica.id,
                        replica_pages_max=replica.pages_total,
                    )
            except (RedisError, OSError):
                return None
            finally:
                if not moved:
                    seat.leave()
            if moved:
                seat.moved_from(place.seat)
                place.hold.replica_id = replica.id
                return Place(replica, place.hold, place.verdict, seat)
        return None

    def knows_another(self, demand: Demand, tried: frozenset[str]) -> bool:
        """Whether an adapter's request could be served by a replica that was not ``tried`` and has not failed to bring
        the adapter in lately.
        """
        if demand.engine_name == demand.base_model:
            return False
        able = self._room.ranking(demand, tried=tried, overdue=True).able
        failed_by = self._replicas.failed_by(demand.engine_name)
        return any(candidate.status.id not in failed_by for candidate in able)

    def ended(self, demand: Demand, place: Place, event: UsageEvent | None) -> None:
        """A request has settled, or will: its room is another's, and its tenant is charged what it was served."""
        place.seat.stay.give_back()
        place.seat.correct(0 if event is None else service(event.input_tokens, event.output_tokens))
        self._room.wake(demand.base_model)

    async def _check(self, demand: Demand) -> None:
        """Let nobody wait in vain: for replicas that cannot serve it, or with a tenant that is over its limits."""
        able = self._room.ranking(demand).able
        if not able:
            raise self._nowhere(demand)
        verdict = await self._reserve(demand, able[0].status, _PEEK)
        if verdict.blocked_by != REPLICA_PAGES:
            raise quota_exceeded(verdict, tokens=demand.tokens)

    async def _take(self, demand: Demand, seat: Assignment) -> Place | None:
        """Reserve; None where the tenant may but the replica has no room after all."""
        replica = seat.candidate.status
        try:
            verdict = await self._reserve(demand, replica, seat.pages_max)
        except BaseException:
            seat.leave()
            self._room.wake(demand.base_model)
            raise
        if not verdict.slice_id:  # else Redis has said nothing of the replica
            seat.stay.answered(verdict.replica_pages_held, granted_pages=verdict.pages)
        if verdict.blocked_by:
            seat.leave()
            if verdict.blocked_by == REPLICA_PAGES:
                return None
            self._room.wake(demand.base_model)
            raise quota_exceeded(verdict, tokens=demand.tokens)
        taken = demand.allowance.taken(
            input_tokens=demand.input_tokens,
            output_tokens=demand.sequences * verdict.max_tokens,
            pages=verdict.pages,
        )
        hold = Hold(verdict.slice_id or demand.request_id, demand.tenant_id, replica.id, verdict.pages, taken)
        self._settler.hold(hold)
        self._slices.note(demand)
        return Place(replica, hold, verdict, seat)

    async def _reserve(self, demand: Demand, replica: ReplicaStatus, pages_max: int) -> Verdict:
        ask = Ask(
            request_id=demand.request_id,
            sequences=demand.sequences,
            prompt_tokens=demand.prompt_tokens,
            max_tokens=demand.max_tokens,
            min_tokens=demand.min_tokens,
            block_tokens=replica.block_tokens,
        )
        began = time.monotonic()
        try:
            return await self._reservations.reserve(
                ask, demand.allowance, replica_id=replica.id, replica_pages_max=pages_max, within_s=self._deadline_s
            )
        except BaseException as error:
            # The script may have run although its answer did not come: give back what it may have taken.
            self._settler.settle_later(
                Settlement(request_id=demand.request_id, tenant_id=demand.tenant_id, replica_id=replica.id)
            )
            if isinstance(error, RedisError | OSError):
                if pages_max != _PEEK and (verdict := self._slices.spend(demand, replica.block_tokens)):
                    return verdict
                _log.warning("reservation failed; nobody is admitted", error=repr(error))
                raise Unavailable(
                    "Quotas cannot be checked now; try again shortly.", code="quota_unavailable", retry_after_s=1
                ) from error
            raise
        finally:
            metrics.RESERVE_SECONDS.observe(time.monotonic() - began)

    def _nowhere(self, demand: Demand) -> InvalidRequest | Unavailable:
        ready = [
            candidate.status
            for candidate in self._replicas.alive(demand.base_model)
            if candidate.status.state == "ready" and candidate.status.rank_max >= demand.rank
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
            f"The request may take {demand.wish().pages(largest.block_tokens)} KV pages, and the largest replica has "
            f"{largest.pages_total}; lower max_tokens or n, or shorten the prompt.",
            code="request_exceeds_replica",
            param="max_tokens",
        )
