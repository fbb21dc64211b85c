"""What this process knows to be on each replica at this moment: pages, running requests, prompts not read yet, adapters
in work, and whose they are. What an engine says of itself, and what other gateways sent there, comes later and from
elsewhere (replicas.py).
"""

import zlib
from collections import Counter
from collections.abc import Mapping

from data_plane.gateway.scheduling.fair_share import PageClaim


def tag(engine_name: str) -> str:
    """What gateways call an adapter among themselves: short, and seldom the same for two."""
    return f"{zlib.crc32(engine_name.encode()):08x}"


class ReplicaLoad:
    """One replica's. ``held_pages`` are all gateways' holds as Redis last said; ``asked_pages`` are what this process
    is asking Redis for now. ``adapters`` counts running requests by engine name, and ``in_work`` the adapters of all
    gateways: placement asks that of every replica for each request.
    """

    __slots__ = (
        "_elsewhere", "_tags", "adapters", "asked_pages", "held_pages", "in_work", "prompt_tokens", "requests",
    )  # fmt: skip

    def __init__(self, held_pages: int = 0) -> None:
        self.held_pages = held_pages
        self.asked_pages = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.adapters: Counter[str] = Counter()
        self.in_work = 0
        self._tags: dict[str, str] = {}
        self._elsewhere: frozenset[str] = frozenset()

    @property
    def tags(self) -> list[str]:
        """Of the adapters that this process has in work there."""
        return list(self._tags.values())

    @property
    def elsewhere(self) -> frozenset[str]:
        """Tags of the adapters that other gateways have in work there."""
        return self._elsewhere

    @elsewhere.setter
    def elsewhere(self, tags: frozenset[str]) -> None:
        self._elsewhere = tags
        self._count()

    def begin(self, adapter: str) -> None:
        """A request of an adapter begins."""
        self.adapters[adapter] += 1
        if self.adapters[adapter] == 1:
            self._tags[adapter] = tag(adapter)
            self._count()

    def end(self, adapter: str) -> None:
        """One that began is over."""
        self.adapters[adapter] -= 1
        if not self.adapters[adapter]:
            del self.adapters[adapter], self._tags[adapter]
            self._count()

    def runs(self, adapter: str, its_tag: str) -> bool:
        """Whether an adapter is in work there, for any gateway."""
        return adapter in self.adapters or its_tag in self._elsewhere

    def _count(self) -> None:
        self.in_work = len(self._elsewhere.union(self._tags.values())) if self._elsewhere else len(self.adapters)

    @property
    def taken_pages(self) -> int:
        return self.held_pages + self.asked_pages


class Shares:
    """KV pages that tenants have in work in one pool of replicas, and the tenants' weights: this process's at this
    moment, and other gateways' as they said last.
    """

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[str, PageClaim] = {}
        self._elsewhere: Mapping[str, PageClaim] = {}
        self._weights = 0  # of all who are at work, here or elsewhere

    def add(self, tenant_id: str, weight: int, tier: int, pages: int) -> None:
        """A request of this tenant begins, or ends (negative pages)."""
        claim = self._held.get(tenant_id)
        before = 0 if claim is None else claim.held
        held = max(0, before + pages)
        self.total += held - before
        self._weights -= self._weight(tenant_id)
        if held:
            self._held[tenant_id] = PageClaim(weight, tier, held, 0)
        elif claim is not None:
            del self._held[tenant_id]
        self._weights += self._weight(tenant_id)

    def claims(self) -> dict[str, PageClaim]:
        """What each tenant has in work here."""
        return dict(self._held)

    def hear(self, elsewhere: Mapping[str, PageClaim]) -> None:
        """What tenants have in work at other gateways."""
        self._elsewhere = elsewhere
        at_work = self._held.keys() | {tenant_id for tenant_id, claim in elsewhere.items() if claim.held}
        self._weights = sum(self._weight(tenant_id) for tenant_id in at_work)

    def is_idle(self, tenant_id: str) -> bool:
        """Whether a tenant has nothing in work, as far as is known."""
        return tenant_id not in self._held and not self._held_elsewhere(tenant_id)

    def is_below(self, tenant_id: str, weight: int, pages: int, pages_total: int) -> bool:
        """Whether with so many pages more a tenant still has less than its share of the pool, if it were shared by
        weight between all who are at work and one more of weight 1.
        """
        here = self._held.get(tenant_id)
        held = (0 if here is None else here.held) + self._held_elsewhere(tenant_id)
        others = self._weights - self._weight(tenant_id)
        return (held + pages) * (others + weight + 1) <= pages_total * weight

    def _held_elsewhere(self, tenant_id: str) -> int:
        claim = self._elsewhere.get(tenant_id)
        return 0 if claim is None else claim.held

    def _weight(self, tenant_id: str) -> int:
        """What a tenant counts among those at work."""
        here, elsewhere = self._held.get(tenant_id), self._elsewhere.get(tenant_id)
        return max(
            0 if here is None else here.weight, 0 if elsewhere is None or not elsewhere.held else elsewhere.weight
        )


class Occupancy:
    """One request's time on one replica, from the moment it is placed there. ``adapter`` is "" for a base model."""

    __slots__ = ("_asking", "_load", "_prompt_tokens", "_shares", "_tenant", "adapter", "pages")

    def __init__(
        self,
        load: ReplicaLoad,
        shares: Shares,
        *,
        tenant_id: str,
        weight: int,
        tier: int = 1,
        pages: int,
        prompt_tokens: int,
        adapter: str,
    ) -> None:
        self.pages = pages
        self.adapter = adapter
        self._shares = shares
        self._tenant = tenant_id, weight, tier
        shares.add(*self._tenant, pages)
        self._load: ReplicaLoad | None = load
        self._prompt_tokens = prompt_tokens
        self._asking = True
        load.asked_pages += pages
        load.requests += 1
        load.prompt_tokens += prompt_tokens
        if adapter:
            load.begin(adapter)

    def answered(self, held_pages: int, *, granted_pages: int) -> None:
        """Redis has answered: so much is held there now, with or without this request."""
        if self._load is None:
            return
        self._load.held_pages = held_pages
        self._stop_asking(self._load)
        if granted_pages != self.pages:
            self._shares.add(*self._tenant, granted_pages - self.pages)
            self.pages = granted_pages

    def moved_from(self, other: "Occupancy") -> None:
        """Redis has exchanged the other one's pages for these."""
        if self._load is not None:
            self._load.held_pages += self.pages
            self._stop_asking(self._load)
        other.give_back()

    def prefilled(self) -> None:
        """Its prompt has been read: the first byte has come."""
        if self._load is not None:
            self._load.prompt_tokens -= self._prompt_tokens
            self._prompt_tokens = 0

    def leave(self) -> None:
        """It is over, or never was; a second time changes nothing."""
        load, self._load = self._load, None
        if load is None:
            return
        if self._asking:
            self._stop_asking(load)
        self._shares.add(*self._tenant, -self.pages)
        load.requests -= 1
        load.prompt_tokens -= self._prompt_tokens
        if self.adapter:
            load.end(self.adapter)

    def give_back(self) -> None:
        """It is over, and Redis has its pages again."""
        if self._load is not None and not self._asking:
            self._load.held_pages = max(0, self._load.held_pages - self.pages)
        self.leave()

    def _stop_asking(self, load: ReplicaLoad) -> None:
        if self._asking:
            self._asking = False
            load.asked_pages -= self.pages
