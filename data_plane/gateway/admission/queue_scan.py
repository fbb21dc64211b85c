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
    """The state of one scan, which is over after its first assignment. ``blocked`` are tenants whose oldest request
    lacks pages, or leaves them to tenants of other gateways: their later requests do not pass it. A request that gives
    way may still use replicas that serve no request waiting elsewhere. ``reserved`` are the replicas reserved for
    overdue requests, in the form of a backlog.
    """

    def __init__(self, alive: Sequence[Candidate], pool: PoolQueue, costs: PlacementCosts, now_s: float) -> None:
        self.blocked: set[str] = set()
        self.reserved: dict[str, bool] = {}
        self._now_s = now_s
        self._alive = alive
        self._unwanted = [each for each in alive if each.status.rank_max < pool.gateway_share.division.rank_least]
        self._costs = costs
        self._capacity = PoolCapacity(alive, costs)
        self._passed: list[tuple[WaitingRequest, PlacementQuery]] = []
        self._without_slot: set[tuple[str, bool]] = set()  # adapters that lack a slot
        self._reserved_for_others = {headroom: set(names) for headroom, names in pool.reserved_elsewhere.items()}
        self._pool = pool

    @property
    def is_over(self) -> bool:
        """Whether so many requests were passed over that the scan ends."""
        return len(self._passed) >= PASSED_MAX

    def can_skip(self, tenant_id: str, query: PlacementQuery) -> bool:
        """Whether a similar request has just found no room."""
        return tenant_id in self.blocked or (
            not query.overdue and (query.request.adapter, query.headroom) in self._without_slot
        )

    def find(
        self, tenant_id: str, waiting: WaitingRequest, query: PlacementQuery, *, gives_way: bool
    ) -> Candidate | None:
        """A replica with room for a request; None where there is none, which the scan remembers."""
        lacks_slot = self._capacity.lacks_slot(query)
        lacks_pages = not lacks_slot and self._capacity.lacks_pages(query)
        ranking = NO_REPLICA
        if not (lacks_slot or lacks_pages) or (query.overdue and not waiting.reserved_replica):
            among = self._unwanted if gives_way else self._alive
            ranking = rank(
                among, query, self._costs, tried=self._reserved_for_others[query.headroom] - {waiting.reserved_replica}
            )
        if ranking.now:
            return ranking.now[0]
        if gives_way and not lacks_slot:
            self.blocked.add(tenant_id)
            self._passed.append((waiting, query))  # a smaller request may pass it, for which enough is left
            if not waiting.yielded:
                waiting.yielded = True
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
        adapter = query.request.adapter
        if lacks_pages or ranking.full or not adapter:
            self.blocked.add(tenant_id)
            unseen = self._pool.gateway_share.bounded and not self._pool.is_outranked(query.request)
        else:
            self._without_slot.add((adapter, query.headroom))
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
