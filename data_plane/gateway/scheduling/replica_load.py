"""The load of each replica as this process knows it now: pages, running requests, unprocessed prompts and adapters in
use, and the tenants' parts of it. Engines' own reports and other gateways' requests arrive later, through replicas.py.
"""

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from data_plane.gateway.api.inference_request import BATCH_TIER
from data_plane.gateway.scheduling.fair_share import PageDemand


def tag(engine_name: str) -> str:
    """A short name for an adapter in the reports between gateways; two adapters rarely share one."""
    return f"{zlib.crc32(engine_name.encode()):08x}"


class ReplicaLoad:
    """One replica's load. ``held_pages`` are all gateways' reservations by Redis's last reply; ``pending_pages`` are
    those that this process is requesting from Redis now. ``batch_requests`` are this process's batch requests.
    ``adapters`` counts running requests by engine name.
    ``adapters_in_use`` is the number for all gateways, kept ready because placement reads it for each replica and
    request.
    """

    __slots__ = (
        "_elsewhere", "_tags", "adapters", "adapters_in_use", "batch_requests", "held_pages", "pending_pages",
        "prompt_tokens", "requests",
    )  # fmt: skip

    def __init__(self, held_pages: int = 0) -> None:
        self.held_pages = held_pages
        self.pending_pages = 0
        self.requests = self.batch_requests = 0
        self.prompt_tokens = 0
        self.adapters: Counter[str] = Counter()
        self.adapters_in_use = 0
        self._tags: dict[str, str] = {}
        self._elsewhere: frozenset[str] = frozenset()

    @property
    def tags(self) -> list[str]:
        """Tags of the adapters that this process uses on the replica."""
        return list(self._tags.values())

    @property
    def elsewhere(self) -> frozenset[str]:
        """Tags of the adapters that other gateways use on the replica."""
        return self._elsewhere

    @elsewhere.setter
    def elsewhere(self, tags: frozenset[str]) -> None:
        self._elsewhere = tags
        self._count()

    def begin(self, adapter: str) -> None:
        """Record that a request to an adapter begins."""
        self.adapters[adapter] += 1
        if self.adapters[adapter] == 1:
            self._tags[adapter] = tag(adapter)
            self._count()

    def end(self, adapter: str) -> None:
        """Record that a request to an adapter has ended."""
        self.adapters[adapter] -= 1
        if not self.adapters[adapter]:
            del self.adapters[adapter], self._tags[adapter]
            self._count()

    def runs(self, adapter: str, its_tag: str) -> bool:
        """Whether any gateway uses an adapter on the replica."""
        return adapter in self.adapters or its_tag in self._elsewhere

    def _count(self) -> None:
        self.adapters_in_use = (
            len(self._elsewhere.union(self._tags.values())) if self._elsewhere else len(self.adapters)
        )

    @property
    def taken_pages(self) -> int:
        return self.held_pages + self.pending_pages


class ProviderLoad(ReplicaLoad):
    """The load of an outside provider's model. Each request of this process takes the pages of a whole context, so that
    the provider gets as many requests at once as it may. Other gateways' requests take the pages that they hold.
    """

    __slots__ = ("_context_pages",)

    def __init__(self, context_pages: int) -> None:
        super().__init__()
        self._context_pages = context_pages

    @property
    def taken_pages(self) -> int:
        return max(super().taken_pages, self.requests * self._context_pages)


class BatchRun(Protocol):
    """A batch request on a replica."""

    @property
    def may_give_way(self) -> bool:
        """Whether nothing of its answer has reached its caller."""

    def give_way(self) -> None:
        """End it on its replica; it then waits again."""


class Shares:
    """KV pages that tenants hold in one pool of replicas, and the tenants' weights: in this process now, and at other
    gateways by their last reports. ``batch`` are this process's running batch requests, oldest first.
    """

    def __init__(self) -> None:
        self.total = 0
        self.batch: dict[Occupancy, BatchRun] = {}
        self._held: dict[str, PageDemand] = {}
        self._elsewhere: Mapping[str, PageDemand] = {}
        self._weights = 0  # of all tenants with running requests, here or elsewhere

    def add(self, tenant_id: str, weight: int, tier: int, pages: int) -> None:
        """Record that a request of this tenant begins, or ends (negative ``pages``)."""
        demand = self._held.get(tenant_id)
        before = 0 if demand is None else demand.held
        held = max(0, before + pages)
        self.total += held - before
        self._weights -= self._weight(tenant_id)
        if held:
            self._held[tenant_id] = PageDemand(weight, tier, held, 0)
        elif demand is not None:
            del self._held[tenant_id]
        self._weights += self._weight(tenant_id)

    def demands(self) -> dict[str, PageDemand]:
        """The pages that each tenant holds through this process."""
        return dict(self._held)

    def apply_elsewhere(self, elsewhere: Mapping[str, PageDemand]) -> None:
        """Apply what tenants hold at other gateways."""
        self._elsewhere = elsewhere
        tenants_running = self._held.keys() | {tenant_id for tenant_id, demand in elsewhere.items() if demand.held}
        self._weights = sum(self._weight(tenant_id) for tenant_id in tenants_running)

    def is_idle(self, tenant_id: str) -> bool:
        """Whether a tenant has no running request, as far as this process knows."""
        return tenant_id not in self._held and not self._held_elsewhere(tenant_id)

    def is_below(self, tenant_id: str, weight: int, pages: int, pages_total: int) -> bool:
        """Whether a tenant with ``pages`` more would still be within its share of the pool, if the pool were shared by
        weight between all tenants with running requests and one more of weight 1.
        """
        here = self._held.get(tenant_id)
        held = (0 if here is None else here.held) + self._held_elsewhere(tenant_id)
        others = self._weights - self._weight(tenant_id)
        return (held + pages) * (others + weight + 1) <= pages_total * weight

    def _held_elsewhere(self, tenant_id: str) -> int:
        demand = self._elsewhere.get(tenant_id)
        return 0 if demand is None else demand.held

    def _weight(self, tenant_id: str) -> int:
        """A tenant's weight, or 0 without running requests."""
        here, elsewhere = self._held.get(tenant_id), self._elsewhere.get(tenant_id)
        return max(
            0 if here is None else here.weight, 0 if elsewhere is None or not elsewhere.held else elsewhere.weight
        )


class Occupancy:
    """One request's part of a replica's load, from the moment it is placed. ``adapter`` is "" for a base model, and
    ``leaving`` says that a batch request gives way.
    """

    __slots__ = ("_load", "_pending", "_prompt_tokens", "_shares", "_tenant", "adapter", "leaving", "pages")

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
        self.leaving = False
        self._shares = shares
        self._tenant = tenant_id, weight, tier
        shares.add(*self._tenant, pages)
        self._load: ReplicaLoad | None = load
        self._prompt_tokens = prompt_tokens
        self._pending = True
        load.pending_pages += pages
        load.requests += 1
        if tier == BATCH_TIER:
            load.batch_requests += 1
        load.prompt_tokens += prompt_tokens
        if adapter:
            load.begin(adapter)

    def answered(self, held_pages: int, *, granted_pages: int) -> None:
        """Apply Redis's answer: the pages held on the replica now, and those granted to this request."""
        if self._load is None:
            return
        self._load.held_pages = held_pages
        self._clear_pending(self._load)
        if granted_pages != self.pages:
            self._shares.add(*self._tenant, granted_pages - self.pages)
            self.pages = granted_pages

    @property
    def load(self) -> ReplicaLoad | None:
        """The replica's load; None once the request has left."""
        return self._load

    def begin_batch(self, run: BatchRun) -> None:
        """Record that a batch request runs here: until it leaves, it may give way."""
        self._shares.batch[self] = run

    def prefilled(self) -> None:
        """Record the first byte: the prompt has been processed."""
        if self._load is not None:
            self._load.prompt_tokens -= self._prompt_tokens
            self._prompt_tokens = 0

    def leave(self) -> None:
        """Remove this request from the load. Idempotent."""
        load, self._load = self._load, None
        if load is None:
            return
        if self._pending:
            self._clear_pending(load)
        self._shares.add(*self._tenant, -self.pages)
        self._shares.batch.pop(self, None)
        load.requests -= 1
        if self._tenant[2] == BATCH_TIER:
            load.batch_requests -= 1
        load.prompt_tokens -= self._prompt_tokens
        if self.adapter:
            load.end(self.adapter)

    def give_back(self) -> None:
        """Remove this request from the load, and its pages from those held: Redis has released them."""
        if self._load is not None and not self._pending:
            self._load.held_pages = max(0, self._load.held_pages - self.pages)
        self.leave()

    def _clear_pending(self, load: ReplicaLoad) -> None:
        if self._pending:
            self._pending = False
            load.pending_pages -= self.pages
