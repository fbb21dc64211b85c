"""What a pool of replicas has left at most, seen once for a whole round of the queue: whoever needs more than that need
not be ranked. It says no only where placement would find no room; a place itself, only placement finds.
"""

from collections.abc import Iterable

from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, Wish
from data_plane.gateway.scheduling.replica_load import tag


class Glance:
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
