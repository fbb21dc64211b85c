"""Where a request gets its placement: a replica with room and a reservation that covers it, a bounded wait, or a
refusal. The wait queue decides the order of waiting requests.

Fails closed: while Redis does not answer in time, only requests that a quota slice covers are admitted.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from redis.exceptions import RedisError

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import UsageEvent
from core.errors import InvalidRequest, Unavailable
from core.kv_pages import PAGE_TOKENS
from core.rank_classes import fits
from data_plane.gateway import metrics
from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.demand_report import DemandReport
from data_plane.gateway.admission.empty_pools import EmptyPools
from data_plane.gateway.admission.fair_queue import service
from data_plane.gateway.admission.quota_slices import QuotaSlices
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.quota.rate_limit_response import REPLICA_PAGES, ReservationResult, quota_exceeded
from data_plane.gateway.quota.reservation import ReservationRequest, Reservations, Settlement
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settlement.settler import Hold, Settler

Watch = Callable[[Callable[[], None] | None], None]
_log = structlog.get_logger()
_TENANT_ONLY: Final = -1  # no replica has so few pages: the script checks the tenant's limits alone
_NO_REPLICA: Final = "none", PAGE_TOKENS  # id and block of a replica that has not started
_NO_REPLICA_RETRY_S: Final = 2.0
_LACKS_REPLICAS: Final = frozenset({"no_replica", "overloaded"})
"""Codes of refusals that more replicas would have avoided."""
_IMMEDIATE_MAX: Final = 3
"""Replicas to try before a request waits: each lost its free pages after this process last saw it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What admission adds to a request: a replica, the hold on it, the rate limits' state, and the local assignment."""

    replica: ReplicaStatus
    hold: Hold
    verdict: ReservationResult
    assignment: Assignment = field(repr=False)


class Admission:
    """Places requests on replicas."""

    def __init__(
        self,
        replicas: Replicas,
        reservations: Reservations,
        settler: Settler,
        queue: WaitQueue,
        slices: QuotaSlices,
        empty_pools: EmptyPools,
        demand: DemandReport,
        *,
        deadline_ms: int,
    ) -> None:
        self._replicas = replicas
        self._reservations = reservations
        self._settler = settler
        self._queue = queue
        self._slices = slices
        self._empty_pools = empty_pools
        self._demand = demand
        self._deadline_s = deadline_ms / 1000

    async def admit(
        self, request: InferenceRequest, allowance: Allowance, watch: Watch, phases: RequestPhases
    ) -> Placement:
        """Place a request, at once or after a wait. Raises QuotaExceeded, Unavailable, InvalidRequest for a request
        that no replica can hold, or ClientGone when ``watch`` reports that the caller disconnected.
        """
        try:
            return await self._admit(request, allowance, watch, phases)
        except Unavailable as refusal:
            if refusal.code in _LACKS_REPLICAS:
                self._demand.refused(request)
                if refusal.code == "overloaded" and not self._has_ready_replica(request):
                    ready_in_s = await self._empty_pools.ready_in_s(request.base_model, request.rank)
                    if ready_in_s is not None:
                        raise _not_started(request, ready_in_s) from refusal
            raise

    async def _admit(
        self, request: InferenceRequest, allowance: Allowance, watch: Watch, phases: RequestPhases
    ) -> Placement:
        for assignment in itertools.islice(self._queue.assign_now(request), _IMMEDIATE_MAX):
            if placement := await self._reserve_on(request, allowance, assignment):
                return placement
        entry = self._queue.enter(request)
        phases.queued_at = time.monotonic()
        watch(lambda: self._queue.disconnect(entry))
        try:
            try:
                await self._require_admissible(request, allowance)
            except BaseException:
                self._queue.cancel(entry)
                raise
            while True:
                assignment = await self._queue.wait(entry)
                phases.left_queue_at = time.monotonic()
                if placement := await self._reserve_on(request, allowance, assignment):
                    return placement
                self._queue.put_back(entry, assignment)
        finally:
            watch(None)

    async def move(self, request: InferenceRequest, placement: Placement, tried: frozenset[str]) -> Placement | None:
        """A placement on another replica for a request whose replica failed; None where no replica has room."""
        hold = placement.hold
        ranking = self._queue.ranking(request, tried=tried, overdue=True)
        for candidate in [*ranking.now, *ranking.full][:_IMMEDIATE_MAX]:
            replica, assignment = candidate.status, self._queue.assign(request, candidate)
            moved = False
            try:
                async with asyncio.timeout(self._deadline_s):
                    moved = await self._reservations.move(
                        hold.request_id,
                        assignment.occupancy.pages,
                        tenant_id=request.tenant_id,
                        old_replica_id=hold.replica_id,
                        replica_id=replica.id,
                        replica_pages_max=replica.pages_total,
                    )
            except (RedisError, OSError):
                return None
            finally:
                if not moved:
                    assignment.cancel()
            if moved:
                assignment.moved_from(placement.assignment)
                hold.replica_id = replica.id
                return Placement(replica, hold, placement.verdict, assignment)
        return None

    def has_untried_replica(self, request: InferenceRequest, tried: frozenset[str]) -> bool:
        """Whether a replica remains for an adapter's request that is not in ``tried`` and has not recently failed to
        load the adapter.
        """
        adapter = request.adapter
        if not adapter:
            return False
        able = self._queue.ranking(request, tried=tried, overdue=True).able
        failed_by = self._replicas.failed_by(adapter)
        return any(candidate.status.id not in failed_by for candidate in able)

    def ended(self, request: InferenceRequest, placement: Placement, event: UsageEvent | None) -> None:
        """A request has settled, or will settle: free its room, and charge its tenant in the queue what was served."""
        placement.assignment.occupancy.give_back()
        placement.assignment.correct(0 if event is None else service(event.input_tokens, event.output_tokens))
        self._replicas.free(placement.replica)
        self._queue.wake(request.base_model)
        if event is not None:
            self._demand.served(placement.replica.pool, event, request.sequences)

    async def _require_admissible(self, request: InferenceRequest, allowance: Allowance) -> None:
        """Refuse a request that would wait in vain: no replica can serve it in time, or its tenant is over a limit."""
        able = self._queue.ranking(request).able
        if not able:
            await self._require_start_in_time(request)
        replica_id, block_tokens = (able[0].status.id, able[0].status.block_tokens) if able else _NO_REPLICA
        verdict = await self._reserve(request, allowance, replica_id, block_tokens, _TENANT_ONLY)
        if verdict.blocked_by != REPLICA_PAGES:
            raise quota_exceeded(verdict, tokens=request.tokens)

    async def _require_start_in_time(self, request: InferenceRequest) -> None:
        """Refuse a request that no live replica can serve, unless one should start while the request can wait."""
        refusal = self._refusal(request)
        if isinstance(refusal, InvalidRequest) or self._has_ready_replica(request):
            raise refusal
        ready_in_s = await self._empty_pools.ready_in_s(request.base_model, request.rank)
        if ready_in_s is None:
            raise refusal
        if ready_in_s > self._queue.patience_s(request):
            raise _not_started(request, ready_in_s)

    def _has_ready_replica(self, request: InferenceRequest) -> bool:
        """Whether a replica of the request's placement group reports ready, also one behind an open circuit."""
        replicas = (candidate.status for candidate in self._replicas.pool(request.base_model))
        return any(replica.state == "ready" and fits(request.rank, replica.rank_max) for replica in replicas)

    async def _reserve_on(
        self, request: InferenceRequest, allowance: Allowance, assignment: Assignment
    ) -> Placement | None:
        """Reserve on the assigned replica; None where the tenant may run but the replica has no room after all."""
        replica, base_model = assignment.candidate.status, request.base_model
        try:
            verdict = await self._reserve(request, allowance, replica.id, replica.block_tokens, assignment.pages_max)
        except BaseException:
            assignment.cancel()
            self._queue.wake(base_model)
            raise
        if not verdict.slice_id:  # with a slice, Redis did not report on the replica
            assignment.occupancy.answered(verdict.replica_pages_held, granted_pages=verdict.pages)
        if verdict.blocked_by:
            assignment.cancel()
            if verdict.blocked_by == REPLICA_PAGES:
                return None
            self._queue.wake(base_model)
            raise quota_exceeded(verdict, tokens=request.tokens)
        taken = allowance.taken(
            input_tokens=request.input_tokens,
            output_tokens=request.sequences * verdict.max_tokens,
            pages=verdict.pages,
        )
        hold = Hold(verdict.slice_id or request.id, request.tenant_id, replica.id, verdict.pages, taken)
        self._settler.hold(hold)
        self._slices.record(request, allowance)
        return Placement(replica, hold, verdict, assignment)

    async def _reserve(
        self, request: InferenceRequest, allowance: Allowance, replica_id: str, block_tokens: int, pages_max: int
    ) -> ReservationResult:
        reservation_request = ReservationRequest(
            request_id=request.id,
            prompts=request.prompts,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            block_tokens=block_tokens,
        )
        started = time.monotonic()
        try:
            return await self._reservations.reserve(
                reservation_request,
                allowance,
                replica_id=replica_id,
                replica_pages_max=pages_max,
                within_s=self._deadline_s,
            )
        except BaseException as error:
            # The script may have run although its answer did not arrive: give back what it may have reserved.
            self._settler.settle_later(
                Settlement(request_id=request.id, tenant_id=request.tenant_id, replica_id=replica_id)
            )
            if isinstance(error, RedisError | OSError):
                if pages_max != _TENANT_ONLY and (verdict := self._slices.spend(request, allowance, block_tokens)):
                    return verdict
                _log.warning("reservation failed, request refused", error=repr(error))
                raise Unavailable(
                    "Quotas cannot be checked now; try again shortly.", code="quota_unavailable", retry_after_s=1
                ) from error
            raise
        finally:
            metrics.RESERVE_SECONDS.observe(time.monotonic() - started)

    def _refusal(self, request: InferenceRequest) -> InvalidRequest | Unavailable:
        rank = request.rank
        ready = [
            candidate.status
            for candidate in self._replicas.alive(request.base_model)
            if candidate.status.state == "ready" and candidate.status.rank_max >= rank
        ]
        if not ready:
            fit = f" for adapters of rank {rank}" if rank else ""
            return Unavailable(
                f"No replica of `{request.base_model}`{fit} is ready.",
                code="no_replica",
                retry_after_s=_NO_REPLICA_RETRY_S,
            )
        largest = max(ready, key=lambda status: status.pages_total)
        return InvalidRequest(
            f"The request may take {request.pages(largest.block_tokens)} KV pages, and the largest replica has "
            f"{largest.pages_total}; lower max_tokens or n, or send shorter or fewer prompts.",
            code="request_exceeds_replica",
            param="max_tokens",
        )


def _not_started(request: InferenceRequest, ready_in_s: float) -> Unavailable:
    return Unavailable(
        f"`{request.base_model}` has no replica now. One should be ready in about {math.ceil(ready_in_s)} s.",
        code="no_replica",
        retry_after_s=ready_in_s,
    )
