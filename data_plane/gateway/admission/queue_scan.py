"""One look through a queue for somebody to seat, in the order of turns: who need not be asked any more, since one like
it found no room, and for whom a replica is kept. It is over as soon as somebody is seated.
"""

from collections.abc import Iterable, Sequence

from data_plane.gateway import metrics
from data_plane.gateway.admission.pool_queue import PoolQueue, WaitingRequest
from data_plane.gateway.scheduling.placement import NOWHERE, Candidate, PlacementCosts, Ranking, Wish, rank
from data_plane.gateway.scheduling.replica_load import tag

PASSED_MAX = 64
"""Requests that found no room in one look, after which nobody else is looked at."""


class PoolCapacity:
    """One look at the replicas. It is out of date as soon as somebody is seated."""

    def __init__(self, candidates: Iterable[Candidate], costs: PlacementCosts) -> None:
        self._free_tokens = self._open_tokens = 0
        self._spared_tokens: int | None = None  # what the smallest replica has for those who leave it headroom
        self._block_tokens = 0  # of the largest block
        self._slot_open = False
        self._adapters: set[str] = set()
        self._elsewhere: set[str] = set()  # tags of adapters that other gateways have in work
        for candidate in candidates:
            status, free = candidate.status, candidate.free_pages
            if status.state != "ready":
                continue
            kept = int(status.pages_total * costs.headroom_share)
            spared = (status.pages_total - kept) * status.block_tokens
            self._free_tokens = max(self._free_tokens, free * status.block_tokens)
            self._open_tokens = max(self._open_tokens, (free - kept) * status.block_tokens)
            self._spared_tokens = spared if self._spared_tokens is None else min(self._spared_tokens, spared)
            self._block_tokens = max(self._block_tokens, status.block_tokens)
            self._slot_open = self._slot_open or candidate.load.in_work < max(1, status.slots)
            self._adapters |= candidate.load.adapters.keys()
            self._elsewhere |= candidate.load.elsewhere

    def lacks_pages(self, wish: Wish) -> bool:
        """Whether no replica has as many pages for it."""
        tokens = wish.sequences * wish.sequence_tokens
        # Who could never run beside the headroom need not leave it. The last block of a sequence may be almost empty.
        most = tokens + wish.sequences * self._block_tokens
        leaves_headroom = not wish.headroom and most <= (self._spared_tokens or 0)
        return tokens > (self._open_tokens if leaves_headroom else self._free_tokens)

    def lacks_slot(self, wish: Wish) -> bool:
        """Whether its adapter would be one too many on every replica."""
        if not wish.adapter or wish.overdue or self._slot_open or wish.adapter in self._adapters:
            return False
        return not self._elsewhere or tag(wish.adapter) not in self._elsewhere

    @property
    def is_shared(self) -> bool:
        """Whether other gateways have adapters in work there."""
        return bool(self._elsewhere)


class QueueScan:
    """What one look has found out. ``blocked`` are tenants whose oldest request lacks pages, or leaves them to tenants
    of other gateways: their later ones do not pass it. Who gives way may still go to replicas that can serve nobody of
    those who wait elsewhere. ``kept`` are the replicas kept for who is overdue, as a backlog tells them.
    """

    def __init__(self, alive: Sequence[Candidate], room: PoolQueue, costs: PlacementCosts, now_s: float) -> None:
        self.blocked: set[str] = set()
        self.kept: dict[str, bool] = {}
        self._now_s = now_s
        self._alive = alive
        self._unwanted = [each for each in alive if each.status.rank_max < room.allotment.division.rank_least]
        self._costs = costs
        self._glance = PoolCapacity(alive, costs)
        self._passed: list[tuple[WaitingRequest, Wish]] = []
        self._hopeless: set[tuple[str, bool]] = set()  # adapters that lack a slot
        self._claimed = {headroom: set(names) for headroom, names in room.kept_elsewhere.items()}
        self._room = room

    @property
    def is_over(self) -> bool:
        """Whether so many were passed over that nobody else is looked at."""
        return len(self._passed) >= PASSED_MAX

    def is_vain(self, tenant_id: str, wish: Wish) -> bool:
        """Whether a request like this one found no room just now."""
        return tenant_id in self.blocked or (not wish.overdue and (wish.adapter, wish.headroom) in self._hopeless)

    def seek(self, tenant_id: str, waiter: WaitingRequest, wish: Wish, *, gives_way: bool) -> Candidate | None:
        """A replica with room for a request; None where there is none, which is remembered."""
        lacks_slot = self._glance.lacks_slot(wish)
        lacks_pages = not lacks_slot and self._glance.lacks_pages(wish)
        ranking = NOWHERE
        if not (lacks_slot or lacks_pages) or (wish.overdue and not waiter.claim):
            among = self._unwanted if gives_way else self._alive
            ranking = rank(among, wish, self._costs, tried=self._claimed[wish.headroom] - {waiter.claim})
        if ranking.now:
            return ranking.now[0]
        if gives_way and not lacks_slot:
            self.blocked.add(tenant_id)
            self._passed.append((waiter, wish))  # by a smaller one, for which there is enough left
            if not waiter.gave_way:
                waiter.gave_way = True
                metrics.QUEUE_YIELDS.inc()
        else:
            all_kept = not (lacks_slot or ranking.able) and bool(self._claimed[wish.headroom])
            self._pass_over(tenant_id, waiter, wish, ranking, lacks_pages=lacks_pages or all_kept)
        return None

    def seated(self, wish: Wish) -> None:
        """A request with this wish goes before those that found no room."""
        for other, others_wish in self._passed:
            if other.passed_at is None and (others_wish.headroom or not wish.headroom):
                other.passed_at = self._now_s

    def _pass_over(
        self, tenant_id: str, waiter: WaitingRequest, wish: Wish, ranking: Ranking, *, lacks_pages: bool
    ) -> None:
        self._passed.append((waiter, wish))
        if lacks_pages or ranking.full or not wish.adapter:
            self.blocked.add(tenant_id)
            unseen = self._room.allotment.bounded and not self._room.is_outranked(waiter.demand)
        else:
            self._hopeless.add((wish.adapter, wish.headroom))
            unseen = self._glance.is_shared
        if unseen and waiter.passed_at is None:
            waiter.passed_at = self._now_s  # others go before it where this process does not see them
        if wish.overdue and (waiter.claim or ranking.able):
            waiter.claim = waiter.claim or ranking.able[0].status.id
            self.kept[waiter.claim] = self.kept.get(waiter.claim, False) or wish.headroom
            for headroom in (True, False) if wish.headroom else (False,):
                self._claimed[headroom].add(waiter.claim)
