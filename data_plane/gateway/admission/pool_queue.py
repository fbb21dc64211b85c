"""One base model's queue in one gateway: the waiting requests, the work in progress, and this gateway's share of the
pool. The wait queue decides which request is assigned next.
"""

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from core.contracts.demand import TenantDemand
from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.drain_rate import DrainRate
from data_plane.gateway.admission.fair_queue import FairQueue, QueueBounds
from data_plane.gateway.admission.giving_way import leave
from data_plane.gateway.api.inference_request import BATCH_TIER, InferenceRequest, tenant_of_share
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
_LEFT_FREE_MAX: Final = 0.75
"""The most of a pool that batch leaves free for what arrives."""
_ARRIVALS_INTERVAL_S: Final = 0.5
"""Batch leaves free what arrives within this time: what arrives later gets the pages of requests that gave way."""
_ARRIVALS_INTERVALS: Final = 120
_ARRIVALS_PERCENT: Final = 95
_GROWTH_SHARE: Final = 0.02
"""Where requests are large, replicas are full before all their pages are held. The gateways divide the pages that were
held recently plus this share of all pages: that lets the pool grow where it can, and is the error where it cannot.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long a request may wait in all, how long others may pass it before it is overdue, and the time between two
    polls of Redis. ``batch_wait_s`` is how long a batch request may wait; it never becomes overdue.
    """

    wait_s: float
    batch_wait_s: float
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
    deferred: bool = False  # it has left pages to tenants that wait at other gateways
    refusal: Exception | None = None  # its caller has disconnected, or may not call any longer

    def refuse(self, error: Exception) -> None:
        """End the wait with this error, now or when it has to wait again."""
        self.refusal = error
        if not self.assignment.done():
            self.assignment.set_exception(error)


class ArrivedPages:
    """How many KV pages the requests needed that arrived in each half second of the last minute, so that batch leaves
    as many free. Pure: times come in, in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._pages: deque[int] = deque([0] * _ARRIVALS_INTERVALS, maxlen=_ARRIVALS_INTERVALS)
        self._interval = 0
        self._now = 0
        self._p95 = 0

    def add(self, pages: int, now_s: float) -> None:
        """A request for this many pages has arrived."""
        self._advance(now_s)
        self._now += pages

    def p95(self, now_s: float) -> int:
        """The 95th percentile of the pages that arrived within half a second."""
        self._advance(now_s)
        return self._p95

    def is_idle(self, now_s: float) -> bool:
        """Whether none has arrived."""
        self._advance(now_s)
        return not self._now and not any(self._pages)

    def _advance(self, now_s: float) -> None:
        interval = int(now_s / _ARRIVALS_INTERVAL_S)
        if interval <= self._interval:
            return
        self._pages.append(self._now)
        self._pages.extend([0] * min(_ARRIVALS_INTERVALS, interval - self._interval - 1))
        self._interval, self._now = interval, 0
        self._p95 = sorted(self._pages)[_ARRIVALS_INTERVALS * _ARRIVALS_PERCENT // 100]


class PoolQueue:
    """The waiting requests of one base model in this gateway, and this gateway's share of its replicas."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(bounds)
        self.drain = DrainRate()
        self.shares = Shares()
        self.arrived: defaultdict[frozenset[str], ArrivedPages] = defaultdict(ArrivedPages)  # by their closed pools
        self._arriving_elsewhere = Counter[str]()  # pages within half a second, at all other gateways, by pool
        self.gateway_share = GatewayShare()
        self._demand_fractions: dict[str, float] = {}
        self._held_peak = 0.0  # pages of all gateways, now or recently
        self._divided_at = 0.0
        self.poll: asyncio.Task[None] | None = None
        self.waking = False  # in the next iteration of the loop
        self.reserved: dict[str, bool] = {}  # replicas reserved for overdue requests, as reported
        self.reserved_elsewhere = reserved_by(())
        self.tenants_lacking_pages: Set[str] | None = None  # waiting tenants that lack pages; None is all of them

    def is_ahead_of_all(self, request: InferenceRequest, pages_of_pools: Mapping[str, int]) -> bool:
        """Whether no request waits here that this one must wait for. All others go ahead of batch requests, and a
        request does not wait for one that no pool of the base model could serve as well.
        """
        if self.queue.requests == (0 if request.is_batch else self.queue.waiting(BATCH_TIER)):
            return True
        closed = request.closed_pools
        return bool(closed) and all(
            pages_of_pools.keys() <= closed | each.item.request.closed_pools
            for account in self.queue.accounts()
            if account.tier < BATCH_TIER or request.is_batch
            for each in account.waiting
        )

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
        if self.gateway_share.division.tier_least == BATCH_TIER and not request.is_batch:
            return True  # only batch requests wait there, and they wait for this one
        return not self.is_outranked(request) and self.is_below(request, pages, pages_total)

    def is_outranked(self, request: InferenceRequest) -> bool:
        """Whether a higher tier waits here, or waits for pages at another gateway."""
        tier, gateway_share = request.tier, self.gateway_share
        return self.queue.has_higher_tier(tier) or (gateway_share.bounded and gateway_share.division.tier_least < tier)

    def left_free(self, pages_of_pools: Mapping[str, int], now_s: float) -> dict[str, float]:
        """The share of each pool's pages that batch leaves free: as many as other requests for them arrive within half
        a second. Pools for which none arrived in the last minute have none.
        """
        arriving, elsewhere = self._arriving(pages_of_pools, now_s), self._arriving_elsewhere
        return {
            name: min(_LEFT_FREE_MAX, (arriving.get(name, 0) + elsewhere.get(name, 0)) / max(1, pages))
            for name, pages in pages_of_pools.items()
            if name in arriving or name in elsewhere
        }

    def _arriving(self, pages_of_pools: Mapping[str, int], now_s: float) -> dict[str, int]:
        """The pages of the requests for each pool, without batch, that arrive within half a second. Where one may use
        several pools, it counts in proportion to their sizes.
        """
        found: dict[str, int] = {}
        for closed, arrived in self.arrived.items():
            if not arrived.is_idle(now_s):
                pages = arrived.p95(now_s)
                open_pools = {name: size for name, size in pages_of_pools.items() if name not in closed}
                total = max(1, sum(open_pools.values()))
                for name, size in open_pools.items():
                    found[name] = found.get(name, 0) + math.ceil(pages * size / total)
        return found

    def give_way(self, candidates: Iterable[Candidate]) -> None:
        """Let batch requests give way to better work that waits at other gateways."""
        division = self.gateway_share.division
        if division.share is not None and division.tier_least < BATCH_TIER:
            useful = [each for each in candidates if division.wants(each.status)]
            leave(math.ceil(self.shares.total - division.share), useful, self.shares.batch)

    def tenant_demands(self, base_model: str, now_s: float) -> Iterator[TenantDemand]:
        """What each tenant holds and waits for."""
        held, waiting = self.shares.demands(), {account.tenant_id: account for account in self.queue.accounts()}
        for share_id in held.keys() | waiting.keys():
            running, account = held.get(share_id), waiting.get(share_id)
            entries = account.waiting if account else ()
            known, oldest = running or account, min((each.item.arrived for each in entries), default=now_s)
            assert known is not None, "the share is in one of the two"
            yield TenantDemand(
                base_model=base_model,
                tenant_id=tenant_of_share(share_id),
                is_batch=known.tier == BATCH_TIER,
                tier=known.tier,
                weight=known.weight,
                held_pages=running.held if running else 0,
                waiting_pages=account.pages if account else 0,
                waiting_requests=len(entries),
                longest_wait_ms=round((now_s - oldest) * 1000),
            )

    def backlog(
        self, pool: Sequence[Candidate], pages_of_pools: Mapping[str, int], bounds: BacklogBounds, now_s: float
    ) -> GatewayBacklog:
        """What this gateway reports to the others. A tenant that waits for something other than pages reports no
        further demand, and no tenant reports more demand than the replicas that accept its request have pages.
        """
        demands, within_reach = self.shares.demands(), dict[tuple[int, frozenset[str]], int]()  # by rank, closed pools
        closed_pools = set(pages_of_pools)
        for account in self.queue.accounts():
            if self.tenants_lacking_pages is None or account.tenant_id in self.tenants_lacking_pages:
                closed_pools.intersection_update(*(entry.item.request.closed_pools for entry in account.waiting))
                oldest = account.waiting[0].item.request
                reach = rank, closed = oldest.rank, oldest.closed_pools
                if reach not in within_reach:
                    within_reach[reach] = sum(
                        each.status.pages_total
                        for each in pool
                        if each.status.rank_max >= rank and each.status.pool not in closed
                    )
                held = demands.get(account.tenant_id, PageDemand(account.weight, account.tier, 0, 0))
                waiting = min(account.pages, max(0, within_reach[reach] - held.held))
                demands[account.tenant_id] = held.combined(PageDemand(account.weight, account.tier, 0, waiting))
        tenants, rest = named(demands, bounds.tenants_max)
        adapters: dict[str, list[str]] = {}
        left = bounds.adapters_max
        for candidate in pool:
            if tags := candidate.load.tags[:left]:
                adapters[candidate.status.id] = tags
                left -= len(tags)
        return GatewayBacklog(
            tenants, rest, min((rank for rank, _ in within_reach), default=0), adapters, self.reserved,
            self._arriving(pages_of_pools, now_s), sorted(closed_pools) if within_reach else [],
        )  # fmt: skip

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
        self._arriving_elsewhere = Counter()
        for backlog in others:
            self._arriving_elsewhere.update(backlog.arriving)  # a pool with 0 pages stays one that others use
        for closed in [closed for closed, arrived in self.arrived.items() if arrived.is_idle(now_s)]:
            del self.arrived[closed]
        self.shares.apply_elsewhere(division.elsewhere)
        self.queue.set_demand_fractions(self._demand_fractions)
