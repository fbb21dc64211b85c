"""One scan of a pool's queue for a request that can be assigned, in the order of turns. The scan remembers what found
no room, so that it skips similar requests, and which replicas are reserved for overdue requests.
"""

from collections.abc import Iterable, Sequence

from data_plane.gateway import metrics
from data_plane.gateway.admission.pool_queue import PoolQueue, WaitingRequest
from data_plane.gateway.scheduling.placement import (
    NO_REPLICA,
    Candidate,
    PlacementCosts,
    PlacementQuery,
    Ranking,
    rank,
)
from data_plane.gateway.scheduling.replica_load import tag

PASSED_MAX = 64
"""After this many requests without room, a scan ends."""


class PoolCapacity:
    """The most that any replica of a pool has left, computed once for a scan: a request that needs more need not be
    ranked. It says no only where placement would find no room; only placement finds a replica. It is out of date after
    the next assignment.
    """

    def __init__(self, candidates: Iterable[Candidate], costs: PlacementCosts) -> None:
        self._free_tokens = self._open_tokens = 0
        self._below_headroom_tokens: int | None = None  # of the smallest replica, without its headroom
        self._block_tokens = 0  # of the largest block
        self._slot_open = False
        self._adapters: set[str] = set()
        self._elsewhere: set[str] = set()  # tags of adapters that other gateways have in work
        for candidate in candidates:
            status, free = candidate.status, candidate.free_pages
            if status.state != "ready":
                continue
            headroom = int(status.pages_total * costs.headroom_share)
            below = (status.pages_total - headroom) * status.block_tokens
            self._free_tokens = max(self._free_tokens, free * status.block_tokens)
            self._open_tokens = max(self._open_tokens, (free - headroom) * status.block_tokens)
            if self._below_headroom_tokens is None or below < self._below_headroom_tokens:
                self._below_headroom_tokens = below
            self._block_tokens = max(self._block_tokens, status.block_tokens)
            self._slot_open = self._slot_open or candidate.load.adapters_in_use < max(1, status.slots)
            self._adapters |= candidate.load.adapters.keys()
            self._elsewhere |= candidate.load.elsewhere

    def lacks_pages(self, query: PlacementQuery) -> bool:
        """Whether no replica has enough pages for the request."""
        tokens = query.request.tokens
        # A request that cannot run beside the headroom need not leave it. A sequence's last block may be almost empty.
        most = tokens + query.request.sequences * self._block_tokens
        leaves_headroom = not query.headroom and most <= (self._below_headroom_tokens or 0)
        return tokens > (self._open_tokens if leaves_headroom else self._free_tokens)

    def lacks_slot(self, query: PlacementQuery) -> bool:
        """Whether the request's adapter would be one too many on every replica."""
        adapter = query.request.adapter
        if not adapter or query.overdue or self._slot_open or adapter in self._adapters:
            return False
        return not self._elsewhere or tag(adapter) not in self._elsewhere

    @property
    def is_shared(self) -> bool:
        """Whether other gateways have adapters in work on these replicas."""
        return bool(self._elsewhere)


class QueueScan:
    """The state of one scan, which is over after its first assignment. A tenant's later requests for the same pools do
    not pass its oldest one that lacks pages, or that is deferred: it leaves them to tenants of other gateways, and may
    still use replicas that serve no request waiting there. ``reserved`` are the replicas reserved for overdue requests,
    in the form of a backlog. ``lacking`` are the requests without room for which batch gives way.
    """

    def __init__(self, alive: Sequence[Candidate], pool: PoolQueue, costs: PlacementCosts, now_s: float) -> None:
        self.reserved: dict[str, bool] = {}
        self.lacking: list[PlacementQuery] = []
        self._now_s = now_s
        self._alive = alive
        share = pool.gateway_share
        self._unwanted = [each for each in alive if share.bounded and not share.division.wants(each.status)]
        self._costs = costs
        self._capacity = PoolCapacity(alive, costs)
        self._passed: list[tuple[WaitingRequest, PlacementQuery]] = []
        self._blocked: dict[tuple[str, frozenset[str]], bool] = {}  # by tenant and closed pools: whether it is deferred
        self._without_slot: set[tuple[str, bool, frozenset[str]]] = set()  # adapters that lack a slot
        self._reserved_for_others = {headroom: set(names) for headroom, names in pool.reserved_elsewhere.items()}
        self._pool = pool

    @property
    def is_over(self) -> bool:
        """Whether so many requests were passed over that the scan ends."""
        return len(self._passed) >= PASSED_MAX

    @property
    def blocked(self) -> set[str]:
        """The tenants that lack pages, or leave them to tenants of other gateways."""
        return {tenant_id for tenant_id, _ in self._blocked}

    def can_skip(self, tenant_id: str, query: PlacementQuery) -> bool:
        """Whether a similar request has just found no room. Batch gives way for this one as well."""
        adapter, closed = query.request.adapter, query.request.closed_pools
        deferred = self._blocked.get((tenant_id, closed))
        if deferred is None and (query.overdue or (adapter, query.headroom, closed) not in self._without_slot):
            return False
        if not deferred and (closed or self._capacity.lacks_pages(query)):  # else it finds room once its turn comes
            self._lack(query)
        return True

    def find(
        self, tenant_id: str, waiting: WaitingRequest, query: PlacementQuery, *, deferred: bool
    ) -> Candidate | None:
        """A replica with room for a request; None where there is none, which the scan remembers."""
        lacks_slot = self._capacity.lacks_slot(query)
        lacks_pages = not lacks_slot and self._capacity.lacks_pages(query)
        ranking = NO_REPLICA
        if not (lacks_slot or lacks_pages) or (query.overdue and not waiting.reserved_replica):
            among = self._unwanted if deferred else self._alive
            ranking = rank(
                among, query, self._costs, tried=self._reserved_for_others[query.headroom] - {waiting.reserved_replica}
            )
        if ranking.now:
            return ranking.now[0]
        if deferred and not lacks_slot:
            self._blocked[tenant_id, query.request.closed_pools] = True
            self._passed.append((waiting, query))  # a smaller request may pass it, for which enough is left
            if not waiting.deferred:
                waiting.deferred = True
                metrics.QUEUE_YIELDS.inc()
        else:
            all_reserved = not (lacks_slot or ranking.able) and bool(self._reserved_for_others[query.headroom])
            self._pass_over(tenant_id, waiting, query, ranking, lacks_pages=lacks_pages or all_reserved)
        return None

    def assigned(self, query: PlacementQuery) -> None:
        """A request was assigned: it goes ahead of those that found no room."""
        for other, others_query in self._passed:
            if other.passed_at is None and (others_query.headroom or not query.headroom):
                other.passed_at = self._now_s

    def _pass_over(
        self, tenant_id: str, waiting: WaitingRequest, query: PlacementQuery, ranking: Ranking, *, lacks_pages: bool
    ) -> None:
        self._passed.append((waiting, query))
        self._lack(query)
        adapter, closed = query.request.adapter, query.request.closed_pools
        if lacks_pages or ranking.full or not adapter:
            self._blocked[tenant_id, closed] = False
            unseen = self._pool.gateway_share.bounded and not self._pool.is_outranked(query.request)
        else:
            self._without_slot.add((adapter, query.headroom, closed))
            unseen = self._capacity.is_shared
        if unseen and waiting.passed_at is None:
            waiting.passed_at = self._now_s  # requests of other gateways go ahead of it, unseen by this process
        if query.overdue and (waiting.reserved_replica or ranking.able):
            waiting.reserved_replica = waiting.reserved_replica or ranking.able[0].status.id
            self.reserved[waiting.reserved_replica] = (
                self.reserved.get(waiting.reserved_replica, False) or query.headroom
            )
            for headroom in (True, False) if query.headroom else (False,):
                self._reserved_for_others[headroom].add(waiting.reserved_replica)

    def _lack(self, query: PlacementQuery) -> None:
        if not query.request.is_batch and len(self.lacking) < PASSED_MAX:
            self.lacking.append(query)
