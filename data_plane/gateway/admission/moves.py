"""Moves a running request's hold between replicas: to another one where its replica failed, or to none while a batch
request that gave way waits again. Its holds at its tenant's limits do not change, so it is admitted once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import RedisError

from core.contracts.replicas import ReplicaStatus
from core.errors import Unavailable
from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.fair_queue import QueueEntry
from data_plane.gateway.admission.pool_queue import WaitingRequest
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.client_connection import ClientGone
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.quota.reservation import Checkpoint, Reservations
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settlement.settler import Hold

Watch = Callable[[Callable[[], None] | None], None]
_WAITING: Final = "waiting"  # a name in Redis that no replica has: requests that wait again hold no pages there
_UNBOUNDED: Final = 1 << 50
_TRIED_MAX: Final = 3
"""Replicas to try: each lost its free pages after this process last saw it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What admission adds to a request: a replica, the hold on it, the rate limits' state, and the local assignment."""

    replica: ReplicaStatus
    hold: Hold
    verdict: ReservationResult
    assignment: Assignment = field(repr=False)


class Moves:
    """Moves requests. Every method raises Unavailable while Redis does not answer, except as it says."""

    def __init__(self, replicas: Replicas, reservations: Reservations, queue: WaitQueue, *, deadline_s: float) -> None:
        self._replicas = replicas
        self._reservations = reservations
        self._queue = queue
        self._deadline_s = deadline_s

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

    async def to_another(
        self, request: InferenceRequest, placement: Placement, tried: frozenset[str]
    ) -> Placement | None:
        """A placement on another replica for a request whose replica failed; None where no replica has room."""
        ranking = self._queue.ranking(request, tried=tried, overdue=True)
        for candidate in [*ranking.now, *ranking.full][:_TRIED_MAX]:
            assignment = self._queue.assign(request, candidate)
            assignment.pages_max = candidate.status.pages_total
            try:
                if await self._move(placement.hold, assignment):
                    assignment.moved_from(placement.assignment)
                    return Placement(candidate.status, placement.hold, placement.verdict, assignment)
            except (RedisError, OSError):
                return None
        return None

    async def _move(self, hold: Hold, assignment: Assignment) -> bool:
        """Move a hold to the assigned replica; False where its pages do not fit. Raises redis.RedisError or OSError."""
        replica, occupancy = assignment.candidate.status, assignment.occupancy
        try:
            async with asyncio.timeout(self._deadline_s):
                moved = await self._reservations.move(
                    hold.request_id,
                    occupancy.pages,
                    tenant_id=hold.tenant_id,
                    old_replica_id=hold.replica_id,
                    replica_id=replica.id,
                    replica_pages_max=assignment.pages_max,
                )
        except BaseException:
            assignment.cancel()
            raise
        occupancy.answered(moved.replica_pages_held, granted_pages=occupancy.pages)
        if moved:
            hold.replica_id = replica.id
        else:
            assignment.cancel()
        return bool(moved)

    async def leave_replica(
        self, request: InferenceRequest, placement: Placement, checkpoint: Checkpoint
    ) -> QueueEntry[WaitingRequest]:
        """Free the room of a request that gave way, and let it wait again. ``checkpoint`` is what is charged if this
        process dies meanwhile. Raises Unavailable while Redis does not answer.
        """
        hold = placement.hold
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._reservations.renew({(hold.tenant_id, hold.replica_id): {hold.request_id: checkpoint}})
                await self._reservations.move(
                    hold.request_id,
                    0,
                    tenant_id=hold.tenant_id,
                    old_replica_id=hold.replica_id,
                    replica_id=_WAITING,
                    replica_pages_max=_UNBOUNDED,
                )
        except (RedisError, OSError) as error:
            raise quotas_unavailable() from error
        hold.replica_id = _WAITING
        self.free(request, placement, served=0)
        return self._queue.enter_again(request)

    async def place_again(self, placement: Placement, entry: QueueEntry[WaitingRequest], watch: Watch) -> Placement:
        """Wait for another placement of a request that gave way. Raises as ``admit``."""
        watch(lambda: entry.item.refuse(ClientGone()))
        try:
            while True:
                assignment = await self._queue.wait(entry)
                if await self._move(placement.hold, assignment):
                    return Placement(assignment.candidate.status, placement.hold, placement.verdict, assignment)
                self._queue.put_back(entry, assignment)
        except (RedisError, OSError) as error:
            raise quotas_unavailable() from error
        finally:
            watch(None)

    def free(self, request: InferenceRequest, placement: Placement, *, served: int) -> None:
        """Free the room of a request, and charge its tenant in the queue what was served."""
        placement.assignment.occupancy.give_back()
        placement.assignment.correct(served)
        self._replicas.free(placement.replica)
        self._queue.wake(request.base_model)


def quotas_unavailable() -> Unavailable:
    """The refusal while Redis does not answer."""
    return Unavailable("Quotas cannot be checked now; try again shortly.", code="quota_unavailable", retry_after_s=1)
