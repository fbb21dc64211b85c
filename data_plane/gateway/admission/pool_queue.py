"""One base model's queue in one gateway: the waiting requests, the work in progress, and this gateway's share of the
pool. The wait queue decides which request is assigned next.
"""

import asyncio
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.drain_rate import DrainRate
from data_plane.gateway.admission.fair_queue import FairQueue, QueueBounds
from data_plane.gateway.api.inference_request import FLEX_TIER, InferenceRequest
from data_plane.gateway.scheduling.fair_share import (
    BacklogBounds,
    GatewayBacklog,
    GatewayShare,
    PageDemand,
    divide,
    named,
    reserved_by,
)
from data_plane.gateway.scheduling.placement import Candidate
from data_plane.gateway.scheduling.replica_load import Shares

_FRACTION_AVERAGED_S: Final = 2.0
"""The time over which a tenant's demand fractions are averaged: at one instant it may have a single request."""
_FRACTION_WHOLE: Final = 0.99
"""From this demand fraction on, a tenant counts in full."""
_GROWTH_SHARE: Final = 0.02
"""Where requests are large, replicas are full before all their pages are held. The gateways divide the pages that were
held recently plus this share of all pages: that lets the pool grow where it can, and is the error where it cannot.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long a request may wait in all, how long others may pass it before it is overdue, and the time between two
    polls of Redis. ``flex_wait_s`` is how long a flex request may wait; it never becomes overdue.
    """

    wait_s: float
    flex_wait_s: float
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
    reserved_replica: str = ""  # once it is overdue
    yielded: bool = False  # to tenants that wait at other gateways
    gone: bool = False  # its caller has disconnected


class PoolQueue:
    """The waiting requests of one base model in this gateway, and this gateway's share of its replicas."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(bounds)
        self.drain = DrainRate()
        self.shares = Shares()
        self.gateway_share = GatewayShare()
        self._demand_fractions: dict[str, float] = {}
        self._held_peak = 0.0  # pages of all gateways, now or recently
        self._divided_at = 0.0
        self.poll: asyncio.Task[None] | None = None
        self.waking = False  # in the next iteration of the loop
        self.reserved: dict[str, bool] = {}  # replicas reserved for overdue requests, as reported
        self.reserved_elsewhere = reserved_by(())
        self.tenants_lacking_pages: Set[str] | None = None  # waiting tenants that lack pages; None is all of them

    def is_ahead_of_all(self, request: InferenceRequest) -> bool:
        """Whether no request waits here that this one must wait for. All others go ahead of flex requests."""
        return self.queue.requests == (0 if request.is_flex else self.queue.waiting(FLEX_TIER))

    def is_below(self, request: InferenceRequest, pages: int, pages_total: int) -> bool:
        """Whether the request's tenant stays below its fair share of the pool with these pages."""
        return self.shares.is_below(request.share_id, request.limits.weight, pages, pages_total)

    def allows(self, request: InferenceRequest, pages: int, pages_total: int, *, overdue: bool = False) -> bool:
        """Whether a request may take this many free pages while tenants of other gateways wait for them. Allowed if the
        tenant is below its fair share and no higher tier waits; an overdue request may use what is left of this
        gateway's share, however little.
        """
        if self.gateway_share.allows(self.shares.total, pages, overdue=overdue):
            return True
        if self.gateway_share.division.tier_least == FLEX_TIER and not request.is_flex:
            return True  # only flex requests wait there, and they wait for this one
        return not self.is_outranked(request) and self.is_below(request, pages, pages_total)

    def is_outranked(self, request: InferenceRequest) -> bool:
        """Whether a higher tier waits here, or waits for pages at another gateway."""
        tier, gateway_share = request.tier, self.gateway_share
        return self.queue.has_higher_tier(tier) or (gateway_share.bounded and gateway_share.division.tier_least < tier)

    def backlog(self, pool: Sequence[Candidate], bounds: BacklogBounds) -> GatewayBacklog:
        """What this gateway reports to the others. A tenant that waits for something other than pages reports no
        further demand, and no tenant reports more demand than the replicas that accept its adapter have pages.
        """
        demands, within_reach = self.shares.demands(), dict[int, int]()  # by adapter rank
        for account in self.queue.accounts():
            if self.tenants_lacking_pages is None or account.tenant_id in self.tenants_lacking_pages:
                rank = account.waiting[0].item.request.rank
                if rank not in within_reach:
                    within_reach[rank] = sum(each.status.pages_total for each in pool if each.status.rank_max >= rank)
                held = demands.get(account.tenant_id, PageDemand(account.weight, account.tier, 0, 0))
                waiting = min(account.pages, max(0, within_reach[rank] - held.held))
                demands[account.tenant_id] = held.combined(PageDemand(account.weight, account.tier, 0, waiting))
        tenants, rest = named(demands, bounds.tenants_max)
        adapters: dict[str, list[str]] = {}
        left = bounds.adapters_max
        for candidate in pool:
            if tags := candidate.load.tags[:left]:
                adapters[candidate.status.id] = tags
                left -= len(tags)
        return GatewayBacklog(tenants, rest, min(within_reach, default=0), adapters, self.reserved)

    def apply(self, sent: GatewayBacklog, others: list[GatewayBacklog], pages: float, now_s: float) -> None:
        """Divide the pool's pages again, by this gateway's last report (``sent``) and those of ``others``."""
        newer = 1 - math.exp((self._divided_at - now_s) / _FRACTION_AVERAGED_S)
        self._divided_at = now_s
        held = sent.held + sum(backlog.held for backlog in others)
        self._held_peak = max(held, newer * held + (1 - newer) * self._held_peak)
        division = divide(sent, others, min(pages, self._held_peak + _GROWTH_SHARE * pages))
        averaged = {
            tenant_id: newer * division.demand_fractions.get(tenant_id, 1.0)
            + (1 - newer) * self._demand_fractions.get(tenant_id, 1.0)
            for tenant_id in division.demand_fractions.keys() | self._demand_fractions.keys()
        }
        self._demand_fractions = {
            tenant_id: fraction for tenant_id, fraction in averaged.items() if fraction < _FRACTION_WHOLE
        }
        self.gateway_share.divide(division, self.shares.total, now_s)
        self.reserved_elsewhere = reserved_by(others)
        self.shares.apply_elsewhere(division.elsewhere)
        self.queue.set_demand_fractions(self._demand_fractions)
