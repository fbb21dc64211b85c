"""One base model's queue in one gateway: who waits, what is in work, and what other gateways leave to it. Who is seated
next, the waiting room decides.
"""

import asyncio
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.admission.drain_rate import DrainRate
from data_plane.gateway.admission.fair_queue import FairQueue, QueueBounds
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
"""Over how long a tenant's parts are averaged: at one instant it may have a single request, here or there."""
_WHOLE: Final = 0.99
"""A part from which on a tenant counts in full."""
_GROWTH: Final = 0.02
"""Where requests are large, replicas are full before all their pages are held. What is divided is what was held lately,
and so much of all more: that lets it grow where it can, and is the error where it cannot.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long requests wait: at most; passed over by others until that ends; and between looks at Redis."""

    wait_s: float
    passed_over_s: float
    poll_s: float


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request that waits. ``passed_at`` is when another first went before it although its turn had come."""

    demand: Demand
    deadline: float
    seat: "asyncio.Future[Assignment]"
    arrived: float
    passed_at: float | None = None
    claim: str = ""  # the replica that is kept for it once it is overdue
    gave_way: bool = False  # to tenants who wait behind other gateways
    gone: bool = False  # its caller has hung up


class PoolQueue:
    """The queue, and this gateway's part of the pool."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(bounds)
        self.drain = DrainRate()
        self.shares = Shares()
        self.allotment = GatewayShare()
        self._parts: dict[str, float] = {}
        self._held_most = 0.0  # by all gateways, now or a while ago
        self._heard_at = 0.0
        self.poll: asyncio.Task[None] | None = None
        self.waking = False  # at the next turn of the loop
        self.kept: dict[str, bool] = {}  # replicas, as backlogs tell it
        self.kept_elsewhere = kept_by(())
        self.lacking: Set[str] | None = None  # tenants that lack pages, of those that wait; None is all of them

    def is_below(self, demand: Demand, pages: int, pages_total: int) -> bool:
        """Whether a request's tenant has less than its share of the pool, with these pages."""
        return self.shares.is_below(demand.tenant_id, demand.limits.weight, pages, pages_total)

    def allows(self, demand: Demand, pages: int, pages_total: int, *, overdue: bool = False) -> bool:
        """Whether a request may take so many pages that are free, for all that tenants of other gateways wait for them.
        Whose tenant has less than its share may, unless a better tier waits; and who is overdue may for what is left of
        this gateway's share, however little.
        """
        if self.allotment.allows(self.shares.total, pages, overdue=overdue):
            return True
        return not self.is_outranked(demand) and self.is_below(demand, pages, pages_total)

    def is_outranked(self, demand: Demand) -> bool:
        """Whether a better tier waits here, or for pages behind another gateway."""
        tier, allotment = demand.limits.tier, self.allotment
        return self.queue.has_better(tier) or (allotment.bounded and allotment.division.tier_least < tier)

    def backlog(self, pool: Sequence[Candidate], told: BacklogBounds) -> GatewayBacklog:
        """What to tell other gateways. Who waits for something else than pages wants no more of them, nor anybody
        more than there are on the replicas that take its adapter.
        """
        claims, within_reach = self.shares.claims(), dict[int, int]()  # by adapter rank
        for account in self.queue.accounts():
            if self.lacking is None or account.tenant_id in self.lacking:
                rank = account.waiting[0].item.demand.rank
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

    def hear(self, told: GatewayBacklog, others: list[GatewayBacklog], pages: float, now_s: float) -> None:
        """Divide so many pages anew, between what this gateway ``told`` last and what ``others`` did."""
        newer = 1 - math.exp((self._heard_at - now_s) / _PARTS_S)
        self._heard_at = now_s
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
        self.shares.hear(division.elsewhere)
        self.queue.set_parts(self._parts)
