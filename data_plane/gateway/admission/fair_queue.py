"""The order of waiting requests: strict tiers first, weighted virtual token counters between tenants, and within one
tenant urgent requests first, then first come, first served. Pure: no clock and no asyncio; the caller knows what a turn
costs and whether there is room.

From "Fairness in Serving Large Language Models" (Sheng et al., OSDI '24): a tenant's counter grows by its weighted
tokens as they are served, the tenant with the smallest counter is next, and the counter of a tenant that returns from
idle is lifted to the smallest of those waiting.
"""

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, Literal, TypeVar

INPUT_WEIGHT: Final = 1
OUTPUT_WEIGHT: Final = 2
"""Weights of tokens, as in the paper's artifact: generating a token takes the engine longer than reading one."""

Reason = Literal["full", "tenant"]
T = TypeVar("T")


def service(input_tokens: int, output_tokens: int) -> int:
    """Weighted tokens, by which a tenant's counter grows."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of one queue: requests, their tokens (ceilings), and requests of any one tenant."""

    requests_max: int
    tokens_max: int
    tenant_requests_max: int


class WaitQueueFull(Exception):
    """The queue has no room: for any request (``full``), or for this tenant (``tenant``)."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, eq=False, kw_only=True)
class QueueEntry(Generic[T]):
    """A waiting request. It may take up to ``tokens``: ``service`` in weighted tokens, and ``pages`` in KV pages. A
    smaller ``tier`` always goes first, and an ``urgent`` request before its tenant's others. Requests of one ``kind``
    wait for the same replicas.
    """

    tenant_id: str
    tokens: int
    item: T
    service: int = 0
    pages: int = 0
    weight: int = 1
    tier: int = 0
    urgent: bool = False
    kind: Hashable = None
    number: int = -1  # of its arrival

    @property
    def place(self) -> tuple[bool, int]:
        """Its place in its tenant's line."""
        return not self.urgent, self.number


@dataclass(slots=True, eq=False)
class QueueAccount:
    """A tenant's counter and its waiting requests in their order. ``demand_fraction`` is the share of the tenant's
    demand that is in this queue; as far as is known, other gateways serve the rest.
    """

    tenant_id: str
    counter: float = 0.0
    weight: int = 1
    demand_fraction: float = 1.0
    tier: int = 0
    tokens: int = 0
    pages: int = 0
    kinds: Counter[Hashable] = field(default_factory=Counter)
    waiting: deque[QueueEntry] = field(default_factory=deque)  # type: ignore[type-arg]  # of whatever the queue holds

    @property
    def rate(self) -> float:
        """The tenant's weight in this queue."""
        return self.weight * self.demand_fraction

    def charge(self, served: int, rate: float | None = None) -> None:
        """Add weighted tokens. A negative number returns an overcharge, at the rate at which it was charged."""
        self.counter += served / (rate or self.rate)


class FairQueue(Generic[T]):
    """The waiting requests of one pool of replicas."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._accounts: dict[str, QueueAccount] = {}
        self._demand_fractions: Mapping[str, float] = {}
        self._tiers: Counter[int] = Counter()  # requests that wait
        self._floor = 0.0  # counter of the last tenant that left
        self._arrivals = 0
        self.requests = 0
        self.tokens = 0

    def push(self, entry: QueueEntry[T]) -> list[QueueEntry[T]]:
        """Add a request. If the queue is full, the request may push out requests of lower tiers, or the newest request
        of the tenant with the most waiting requests for its weight, if that is more than its own tenant would have; the
        pushed-out entries are returned. Raises WaitQueueFull.
        """
        account = self._accounts.get(entry.tenant_id)
        queued = len(account.waiting) if account else 0
        if queued >= self._bounds.tenant_requests_max:
            raise WaitQueueFull("tenant")
        pushed_out: list[QueueEntry[T]] = []
        while self._is_full(entry.tokens):
            one_too_few = bool(pushed_out) and pushed_out[-1].tier <= entry.tier
            candidate = None if one_too_few else self._newest_of_largest(entry, queued)
            if candidate is None:
                for each in reversed(pushed_out):
                    self.put_back(each)
                raise WaitQueueFull("full")
            self.remove(candidate)
            pushed_out.append(candidate)
        entry.number = self._arrivals
        self._arrivals += 1
        if account is not None and not account.waiting:  # idle time earns no priority
            account.counter = max(account.counter, self._least())
        self._insert(entry)
        return pushed_out

    def put_back(self, entry: QueueEntry[T]) -> None:
        """Return a request whose turn failed to its old place. Bounds do not apply: it was accepted before."""
        self._insert(entry)

    def waits(self, entry: QueueEntry[T]) -> bool:
        """Whether a request is in the queue now."""
        account = self._accounts.get(entry.tenant_id)
        return account is not None and entry in account.waiting

    def remove(self, entry: QueueEntry[T]) -> QueueAccount:
        """Remove a request that is served or cancelled. Raises ValueError where it does not wait."""
        account = self._accounts[entry.tenant_id]
        account.waiting.remove(entry)
        account.kinds[entry.kind] -= 1
        if not account.kinds[entry.kind]:
            del account.kinds[entry.kind]
        self._tiers[entry.tier] -= 1
        account.tokens -= entry.tokens
        account.pages -= entry.pages
        self.requests -= 1
        self.tokens -= entry.tokens
        if not account.waiting:
            self._floor = max(self._floor, account.counter)
            self._evict_idle()
        return account

    def in_order(self, *, of_tenant_max: int) -> Iterator[QueueEntry[T]]:
        """Requests in the order of their turns: by tier, then by the smallest counter, with the oldest
        ``of_tenant_max`` of each tenant and kind. The queue must not change during the iteration.
        """
        heap = [(a.tier, a.counter, a.waiting[0].number, a) for a in self._accounts.values() if a.waiting]
        heapq.heapify(heap)
        while heap:
            account = heapq.heappop(heap)[3]
            if len(account.kinds) == 1:
                yield from islice(account.waiting, of_tenant_max)
                continue
            seen = Counter[Hashable]()
            for entry in account.waiting:
                seen[entry.kind] += 1
                if seen[entry.kind] <= of_tenant_max:
                    yield entry

    def tokens_ahead(self, entry: QueueEntry[T]) -> float:
        """Tokens that may be served before a new request of this tenant: all of higher tiers; of tenants that were
        served less, what they have waiting up to that difference; and of its own tier, the share that weights give
        other tenants until its turn. Those tenants are expected to use that share even where they have not asked for it
        yet.
        """
        own = self._accounts.get(entry.tenant_id)
        rate = entry.weight * self._demand_fractions.get(entry.tenant_id, 1.0)
        before: float = own.tokens if own else 0
        if own and entry.urgent:
            before = sum(each.tokens for each in own.waiting if each.urgent)
        share, least = (before + entry.tokens) / rate, self._least()
        unit = entry.tokens / (entry.service or entry.tokens)
        behind = 0.0 if own is None else max(0.0, own.counter - least) * unit
        for account in self._accounts.values():
            if account is own or account.tier > entry.tier or not account.waiting:
                continue
            if account.tier < entry.tier:
                before += account.tokens
            else:
                ahead = behind - (account.counter - least) * unit
                before += share * account.rate + max(0.0, min(ahead * account.rate, account.tokens))
        return before

    def waiting(self, tier: int) -> int:
        """How many requests of a tier wait."""
        return self._tiers[tier]

    def has_higher_tier(self, tier: int) -> bool:
        """Whether a request of a higher tier than this waits."""
        return any(waits and better < tier for better, waits in self._tiers.items())

    def set_demand_fractions(self, fractions: Mapping[str, float]) -> None:
        """Set the share of these tenants' demand that is in this queue; it is 1 for all other tenants."""
        self._demand_fractions = fractions
        for account in self._accounts.values():
            account.demand_fraction = fractions.get(account.tenant_id, 1.0)

    def accounts(self) -> Iterator[QueueAccount]:
        """The accounts of tenants with waiting requests."""
        return (account for account in self._accounts.values() if account.waiting)

    def _is_full(self, tokens: int) -> bool:
        return self.requests >= self._bounds.requests_max or self.tokens + tokens > self._bounds.tokens_max

    def _newest_of_largest(self, entry: QueueEntry[T], queued: int) -> QueueEntry[T] | None:
        """The newest entry of the largest tenant in the lowest tier; None where no tenant has more waiting there than
        the new entry's tenant would have.
        """
        others = [a for a in self._accounts.values() if a.waiting and a.tenant_id != entry.tenant_id]
        if not others:
            return None
        largest = max(others, key=lambda a: (a.tier, len(a.waiting) / a.weight, a.tenant_id))
        if largest.tier < entry.tier:
            return None
        if largest.tier == entry.tier and len(largest.waiting) / largest.weight <= (queued + 1) / entry.weight:
            return None
        return largest.waiting[-1]

    def _insert(self, entry: QueueEntry[T]) -> None:
        account = self._accounts.get(entry.tenant_id)
        if account is None:
            account = self._accounts[entry.tenant_id] = QueueAccount(entry.tenant_id, counter=self._least())
            account.demand_fraction = self._demand_fractions.get(entry.tenant_id, 1.0)
        account.weight, account.tier = entry.weight, entry.tier
        account.tokens += entry.tokens
        account.pages += entry.pages
        account.kinds[entry.kind] += 1
        waiting = account.waiting
        place = len(waiting)
        while place and waiting[place - 1].place > entry.place:
            place -= 1
        waiting.insert(place, entry)
        self._tiers[entry.tier] += 1
        self.requests += 1
        self.tokens += entry.tokens

    def _least(self) -> float:
        counters = [account.counter for account in self._accounts.values() if account.waiting]
        return min(counters) if counters else self._floor

    def _evict_idle(self) -> None:
        """Drop accounts without information: all once no request waits, else idle ones that would be lifted anyway."""
        if not self.requests:
            self._accounts.clear()
            self._floor = 0.0
        elif len(self._accounts) > 2 * self._bounds.requests_max:
            least = self._least()
            for idle in [a for a in self._accounts.values() if not a.waiting and a.counter <= least]:
                del self._accounts[idle.tenant_id]
