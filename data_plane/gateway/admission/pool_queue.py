"""One base model's queue in one gateway: the waiting requests, the work in progress, and what other gateways leave to
this one. The wait queue decides which request is assigned next.
"""

import asyncio
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.drain_rate import DrainRate
from data_plane.gateway.admission.fair_queue import FairQueue, QueueBounds
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.fair_share import (
    BacklogBounds,
    GatewayBacklog,
    GatewayShare,
    PageClaim,
    divide,
    kept_by,
    named,
)
from data_plane.gateway.scheduling.placement import Candidate
from data_plane.gateway.scheduling.replica_load import Shares

_PARTS_S: Final = 2.0
"""The time over which a tenant's parts are averaged: at one instant it may have a single request, at one gateway."""
_WHOLE: Final = 0.99
"""From this part on, a tenant counts in full."""
_GROWTH: Final = 0.02
"""Where requests are large, replicas are full before all their pages are held. The gateways divide the pages that were
held recently plus this share of all pages: that lets the pool grow where it can, and is the error where it cannot.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long a request may wait in all, how long others may pass it before it is overdue, and the time between two
    polls of Redis.
    """

    wait_s: float
    overdue_after_s: float
    poll_s: float


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One waiting request. ``passed_at`` is when another request first went ahead of it although its turn had come.
    Times are the loop's.
    """

    request: InferenceRequest
    deadline: float
    assignment: "asyncio.Future[Assignment]"
    arrived: float
    passed_at: float | None = None
    claim: str = ""  # the replica that is reserved for it once it is overdue
    gave_way: bool = False  # to tenants that wait at other gateways
    gone: bool = False  # its caller has disconnected


class PoolQueue:
    """The waiting requests of one base model in this gateway, and this gateway's share of its replicas."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(bounds)
        self.drain = DrainRate()
        self.shares = Shares()
        self.allotment = GatewayShare()
        self._parts: dict[str, float] = {}
        self._held_most = 0.0  # pages of all gateways, now or recently
        self._divided_at = 0.0
        self.poll: asyncio.Task[None] | None = None
        self.waking = False  # in the next iteration of the loop
        self.kept: dict[str, bool] = {}  # replicas reserved for overdue requests, as a backlog reports them
        self.kept_elsewhere = kept_by(())
        self.lacking: Set[str] | None = None  # waiting tenants that lack pages; None is all of them

    def is_below(self, request: InferenceRequest, pages: int, pages_total: int) -> bool:
        """Whether the request's tenant stays below its fair share of the pool with these pages."""
        return self.shares.is_below(request.tenant_id, request.limits.weight, pages, pages_total)

    def allows(self, request: InferenceRequest, pages: int, pages_total: int, *, overdue: bool = False) -> bool:
        """Whether a request may take this many free pages while tenants of other gateways wait for them. Allowed if the
        tenant is below its fair share and no higher tier waits; an overdue request may use what is left of this
        gateway's share, however little.
        """
        if self.allotment.allows(self.shares.total, pages, overdue=overdue):
            return True
        return not self.is_outranked(request) and self.is_below(request, pages, pages_total)

    def is_outranked(self, request: InferenceRequest) -> bool:
        """Whether a higher tier waits here, or waits for pages at another gateway."""
        tier, allotment = request.limits.tier, self.allotment
        return self.queue.has_higher_tier(tier) or (allotment.bounded and allotment.division.tier_least < tier)

    def backlog(self, pool: Sequence[Candidate], told: BacklogBounds) -> GatewayBacklog:
        """What this gateway reports to the others. A tenant that waits for something other than pages claims no further
        pages, and no tenant claims more than the replicas that accept its adapter have.
        """
        claims, within_reach = self.shares.claims(), dict[int, int]()  # by adapter rank
        for account in self.queue.accounts():
            if self.lacking is None or account.tenant_id in self.lacking:
                rank = account.waiting[0].item.request.rank
                if rank not in within_reach:
                    within_reach[rank] = sum(each.status.pages_total for each in pool if each.status.rank_max >= rank)
                held = claims.get(account.tenant_id, PageClaim(account.weight, account.tier, 0, 0))
                waiting = min(account.pages, max(0, within_reach[rank] - held.held))
                claims[account.tenant_id] = held.joined(PageClaim(account.weight, account.tier, 0, waiting))
        tenants, rest = named(claims, told.tenants_max)
        adapters: dict[str, list[str]] = {}
        left = told.adapters_max
        for candidate in pool:
            if tags := candidate.load.tags[:left]:
                adapters[candidate.status.id] = tags
                left -= len(tags)
        return GatewayBacklog(tenants, rest, min(within_reach, default=0), adapters, self.kept)

    def apply(self, told: GatewayBacklog, others: list[GatewayBacklog], pages: float, now_s: float) -> None:
        """Divide the pool's pages again, between what this gateway reported last (``told``) and what ``others`` did."""
        newer = 1 - math.exp((self._divided_at - now_s) / _PARTS_S)
        self._divided_at = now_s
        held = told.held + sum(backlog.held for backlog in others)
        self._held_most = max(held, newer * held + (1 - newer) * self._held_most)
        division = divide(told, others, min(pages, self._held_most + _GROWTH * pages))
        averaged = {
            tenant_id: newer * division.parts.get(tenant_id, 1.0) + (1 - newer) * self._parts.get(tenant_id, 1.0)
            for tenant_id in division.parts.keys() | self._parts.keys()
        }
        self._parts = {tenant_id: part for tenant_id, part in averaged.items() if part < _WHOLE}
        self.allotment.divide(division, self.shares.total, now_s)
        self.kept_elsewhere = kept_by(others)
        self.shares.apply_elsewhere(division.elsewhere)
        self.queue.set_parts(self._parts)
