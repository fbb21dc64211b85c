"""What this process knows to be on each replica at this moment: pages, running requests, prompts not read yet, adapters
in work, and whose they are. What an engine says of itself, and what other gateways sent there, comes later and from
elsewhere (replicas.py).
"""

from collections import Counter


class Load:
    """One replica's. ``held_pages`` are all gateways' holds as Redis last said; ``asked_pages`` are what this process
    is asking Redis for now. ``adapters`` counts running requests by engine name.
    """

    __slots__ = ("adapters", "asked_pages", "held_pages", "prompt_tokens", "requests")

    def __init__(self, held_pages: int = 0) -> None:
        self.held_pages = held_pages
        self.asked_pages = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.adapters: Counter[str] = Counter()

    @property
    def taken_pages(self) -> int:
        return self.held_pages + self.asked_pages


class Shares:
    """KV pages that tenants have in work in one pool of replicas, and the tenants' weights."""

    def __init__(self) -> None:
        self._pages: Counter[str] = Counter()
        self._weights: dict[str, int] = {}

    def add(self, tenant_id: str, weight: int, pages: int) -> None:
        """A request of this tenant begins, or ends (negative pages)."""
        self._pages[tenant_id] += pages
        self._weights[tenant_id] = weight
        if self._pages[tenant_id] <= 0:
            del self._pages[tenant_id], self._weights[tenant_id]

    def is_below(self, tenant_id: str, weight: int, pages: int, pages_total: int, gateways: int) -> bool:
        """Whether with so many pages more a tenant still has less than its share of the pool, if it were shared by
        weight between all who are at work and one more of weight 1. Each of several gateways takes a tenant to have as
        much in work in every other. Who has nothing in work here is below.
        """
        held = self._pages[tenant_id]
        others = sum(self._weights.values()) - self._weights.get(tenant_id, 0)
        return not held or (held + pages) * gateways * (others + weight + 1) <= pages_total * weight


class Stay:
    """One request's time on one replica, from the moment it is placed there. ``adapter`` is "" for a base model."""

    __slots__ = ("_asking", "_load", "_prompt_tokens", "_shares", "_tenant", "adapter", "pages")

    def __init__(
        self, load: Load, shares: Shares, *, tenant_id: str, weight: int, pages: int, prompt_tokens: int, adapter: str
    ) -> None:
        self.pages = pages
        self.adapter = adapter
        self._shares = shares
        self._tenant = tenant_id, weight
        shares.add(tenant_id, weight, pages)
        self._load: Load | None = load
        self._prompt_tokens = prompt_tokens
        self._asking = True
        load.asked_pages += pages
        load.requests += 1
        load.prompt_tokens += prompt_tokens
        if adapter:
            load.adapters[adapter] += 1

    def answered(self, held_pages: int, *, granted_pages: int) -> None:
        """Redis has answered: so much is held there now, with or without this request."""
        if self._load is None:
            return
        self._load.held_pages = held_pages
        self._stop_asking(self._load)
        self._shares.add(*self._tenant, granted_pages - self.pages)
        self.pages = granted_pages

    def moved_from(self, other: "Stay") -> None:
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
            load.adapters[self.adapter] -= 1
            if not load.adapters[self.adapter]:
                del load.adapters[self.adapter]

    def give_back(self) -> None:
        """It is over, and Redis has its pages again."""
        if self._load is not None and not self._asking:
            self._load.held_pages = max(0, self._load.held_pages - self.pages)
        self.leave()

    def _stop_asking(self, load: Load) -> None:
        if self._asking:
            self._asking = False
            load.asked_pages -= self.pages
