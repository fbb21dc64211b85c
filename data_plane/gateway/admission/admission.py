"""Where a request gets its placement: a replica with room and a reservation that covers it, a bounded wait, or a
refusal. The wait queue decides the order of waiting requests.

Fails closed: while Redis does not answer in time, only requests that a quota slice covers are admitted.
"""

import itertools
import math
import time
from collections.abc import Iterable
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
from data_plane.gateway.admission.moves import Moves, Placement, Watch, quotas_unavailable
from data_plane.gateway.admission.quota_slices import QuotaSlices
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.client_connection import ClientGone
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.errors import RequestSettled
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.quota.rate_limit_response import (
    ENDED,
    REPLICA_PAGES,
    SETTLED,
    ReservationResult,
    quota_exceeded,
)
from data_plane.gateway.quota.reservation import ReservationRequest, Reservations, Settlement
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settlement.settler import Hold, Settler

_log = structlog.get_logger()
_TENANT_ONLY: Final = -1  # no replica has so few pages: the script checks the tenant's limits alone
_NO_REPLICA: Final = "none", PAGE_TOKENS  # id and block of a replica that has not started
_NO_REPLICA_RETRY_S: Final = 2.0
LACKS_REPLICAS: Final = frozenset({"no_replica", "overloaded"})
"""Codes of refusals that more replicas would have avoided."""
_IMMEDIATE_MAX: Final = 3
"""Replicas to try before a request waits: each lost its free pages after this process last saw it."""


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
        self.moves = Moves(replicas, reservations, queue, deadline_s=self._deadline_s)

    async def admit(
        self, request: InferenceRequest, allowance: Allowance, watch: Watch, phases: RequestPhases
    ) -> Placement:
        """Place a request, at once or after a wait. Raises QuotaExceeded, Unavailable, InvalidRequest for a request
        that no replica can hold, or ClientGone when ``watch`` reports that the caller disconnected.
        """
        try:
            return await self._admit(request, allowance, watch, phases)
        except Unavailable as refusal:
            if refusal.code in LACKS_REPLICAS:
                self._demand.refused(request)
                if refusal.code == "overloaded" and not _ready(self._fitting(request), request):
                    ready_in_s = await self._empty_pools.ready_in_s(request)
                    if ready_in_s is not None and ready_in_s < math.inf:
                        raise _not_started(request, ready_in_s) from refusal
            raise

    async def _admit(
        self, request: InferenceRequest, allowance: Allowance, watch: Watch, phases: RequestPhases
    ) -> Placement:
        self._queue.arrived(request)
        for assignment in itertools.islice(self._queue.assign_now(request), _IMMEDIATE_MAX):
            if placement := await self._reserve_on(request, allowance, assignment):
                return placement
        entry = self._queue.enter(request)
        phases.queued_at = time.monotonic()
        watch(lambda: entry.item.refuse(ClientGone()))
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

    def ended(self, request: InferenceRequest, placement: Placement, event: UsageEvent | None) -> None:
        """A request has settled, or will settle: free its room, and charge its tenant in the queue what was served."""
        served = 0 if event is None else service(event.input_tokens, event.output_tokens)
        self.moves.free(request, placement, served=served)
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
        fitting = self._fitting(request)
        if ready := _ready(fitting, request):
            if all(request.pages(status.block_tokens) > status.pages_total for status in ready):
                raise _too_large(request, max(ready, key=lambda status: status.pages_total))
            raise _no_replica(request)  # its circuit is open
        ready_in_s = await self._empty_pools.ready_in_s(request)
        if ready_in_s is None and fitting and all(status.pool in request.closed_pools for status in fitting):
            raise InvalidRequest(
                f"No pool of `{request.base_model}` serves {request.service_class} requests of this length; ask for "
                "another class of service with `x-tier`, or change max_tokens.",
                code="no_pool_serves",
                param="max_tokens",
            )
        if ready_in_s is None or ready_in_s == math.inf:
            raise _no_replica(request)
        if ready_in_s > self._queue.patience_s(request):
            raise _not_started(request, ready_in_s)

    def _fitting(self, request: InferenceRequest) -> list[ReplicaStatus]:
        """The replicas of the request's placement group, whatever their state, pool and circuit."""
        replicas = (candidate.status for candidate in self._replicas.pool(request.base_model))
        return [replica for replica in replicas if fits(request.rank, replica.rank_max)]

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
            verdict = await self._reservations.reserve(
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
                if pages_max != _TENANT_ONLY and (sliced := self._slices.spend(request, allowance, block_tokens)):
                    return sliced
                _log.warning("reservation failed, request refused", error=repr(error))
                raise quotas_unavailable() from error
            raise
        finally:
            metrics.RESERVE_SECONDS.observe(time.monotonic() - started)
        if verdict.blocked_by in (SETTLED, ENDED):
            code = "request_settled" if verdict.blocked_by == SETTLED else "request_ended"
            raise RequestSettled("A request with this id ended; its answer is not stored.", code=code, retryable=False)
        return verdict


def _ready(replicas: Iterable[ReplicaStatus], request: InferenceRequest) -> list[ReplicaStatus]:
    """Those that report ready, of pools that serve the request."""
    return [each for each in replicas if each.state == "ready" and each.pool not in request.closed_pools]


def _no_replica(request: InferenceRequest) -> Unavailable:
    fit = f" for adapters of rank {request.rank}" if request.rank else ""
    return Unavailable(
        f"No replica of `{request.base_model}`{fit} is ready.", code="no_replica", retry_after_s=_NO_REPLICA_RETRY_S
    )


def _too_large(request: InferenceRequest, largest: ReplicaStatus) -> InvalidRequest:
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
