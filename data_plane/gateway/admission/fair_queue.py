"""Whose turn it is: weighted virtual token counters between tenants, strict tiers above them, first come first served
within a tenant. Pure: no clock, no asyncio; what a turn is worth, and whether there is room, its caller knows.

From "Fairness in Serving Large Language Models" (Sheng et al., OSDI '24): a tenant's counter grows by its weighted
tokens as they are served, the smallest counter is next, and who returns from idle is lifted to the least of those who
wait.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

INPUT_WEIGHT: Final = 1
OUTPUT_WEIGHT: Final = 2
"""What a token counts, as in the paper's artifact: a generated one takes the engine longer than one that is read."""

Reason = Literal["full", "tenant"]
T = TypeVar("T")


def service(input_tokens: int, output_tokens: int) -> int:
    """Weighted tokens: what a tenant's counter grows by."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Of one queue: requests, their tokens (ceilings), and requests of any one tenant."""

    requests_max: int
    tokens_max: int
    tenant_requests_max: int


class WaitQueueFull(Exception):
    """There is no room, for anybody or for this tenant."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, eq=False, kw_only=True)
class QueueEntry(Generic[T]):
    """A request that waits. ``tokens`` is what it may take at most, ``service`` the same in weighted tokens, ``pages``
    in KV pages; a smaller ``tier`` goes first, always.
    """

    tenant_id: str
    tokens: int
    item: T
    service: int = 0
    pages: int = 0
    weight: int = 1
    tier: int = 0
    number: int = -1  # of its arrival


@dataclass(slots=True, eq=False)
class QueueAccount:
    """A tenant's counter and its waiting requests, oldest first. ``part`` is how much of its wishes are in this queue:
    of others, as far as they are known, somebody else is serving the rest.
    """

    tenant_id: str
    counter: float = 0.0
    weight: int = 1
    part: float = 1.0
    tier: int = 0
    tokens: int = 0
    pages: int = 0
    waiting: deque[QueueEntry] = field(default_factory=deque)  # type: ignore[type-arg]  # of whatever the queue holds

    @property
    def rate(self) -> float:
        """Its weight here."""
        return self.weight * self.part

    def charge(self, served: int, rate: float | None = None) -> None:
        """Add weighted tokens, or take back (negative) what was charged too much, at the rate that held then."""
        self.counter += served / (rate or self.rate)


class FairQueue(Generic[T]):
    """The requests that wait for one pool of replicas."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._accounts: dict[str, QueueAccount] = {}
        self._parts: Mapping[str, float] = {}
        self._tiers: Counter[int] = Counter()  # requests that wait
        self._floor = 0.0  # counter of the tenant that left last
        self._arrivals = 0
        self.requests = 0
        self.tokens = 0

    def push(self, entry: QueueEntry[T]) -> QueueEntry[T] | None:
        """Let a request wait. In a full queue it takes the place of the newest one of the tenant that has the most
        there, for its weight, where that is more than its own tenant would have; that one is returned. Raises
        QueueFull.
        """
        account = self._accounts.get(entry.tenant_id)
        queued = len(account.waiting) if account else 0
        if queued >= self._bounds.tenant_requests_max:
            raise WaitQueueFull("tenant")
        pushed_out = None
        if self._is_full(entry.tokens):
            pushed_out = self._newest_of_largest(entry, queued)
            if pushed_out is None:
                raise WaitQueueFull("full")
            self.remove(pushed_out)
            if self._is_full(entry.tokens):
                self.put_back(pushed_out)
                raise WaitQueueFull("full")
        entry.number = self._arrivals
        self._arrivals += 1
        if account is not None and not account.waiting:  # it was idle, and idle time earns nothing
            account.counter = max(account.counter, self._least())
        self._insert(entry)
        return pushed_out

    def put_back(self, entry: QueueEntry[T]) -> None:
        """Return a request whose turn came to nothing to the place it had. No bound counts: it had been let in."""
        self._insert(entry)

    def waits(self, entry: QueueEntry[T]) -> bool:
        """Whether a request is in the queue now."""
        account = self._accounts.get(entry.tenant_id)
        return account is not None and entry in account.waiting

    def remove(self, entry: QueueEntry[T]) -> QueueAccount:
        """Take a request out: served, or given up. Raises ValueError where it does not wait."""
        account = self._accounts[entry.tenant_id]
        account.waiting.remove(entry)
        self._tiers[entry.tier] -= 1
        account.tokens -= entry.tokens
        account.pages -= entry.pages
        self.requests -= 1
        self.tokens -= entry.tokens
        if not account.waiting:
            self._floor = max(self._floor, account.counter)
            self._forget()
        return account

    def in_order(self, *, of_tenant_max: int) -> Iterator[QueueEntry[T]]:
        """Requests in the order of their turns: by tier, then the smallest counter; of each tenant its oldest few. The
        queue must not change meanwhile.
        """
        heap = [(a.tier, a.counter, a.waiting[0].number, a) for a in self._accounts.values() if a.waiting]
        heapq.heapify(heap)
        while heap:
            account = heapq.heappop(heap)[3]
            for _, entry in zip(range(of_tenant_max), account.waiting, strict=False):
                yield entry

    def tokens_ahead(self, entry: QueueEntry[T]) -> float:
        """Tokens that may be served before a new request of this tenant: all of better tiers; what is waiting of others
        that were served less; and of its own tier as much as weights give the others until its turn, who are expected
        to ask for that even where they have not yet.
        """
        own = self._accounts.get(entry.tenant_id)
        rate = entry.weight * self._parts.get(entry.tenant_id, 1.0)
        before: float = own.tokens if own else 0
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

    def has_better(self, tier: int) -> bool:
        """Whether anybody waits of a better tier than this."""
        return any(waits and better < tier for better, waits in self._tiers.items())

    def set_parts(self, parts: Mapping[str, float]) -> None:
        """Of these tenants only so much of what they wish for is in this queue, of all others everything."""
        self._parts = parts
        for account in self._accounts.values():
            account.part = parts.get(account.tenant_id, 1.0)

    def accounts(self) -> Iterator[QueueAccount]:
        """Of the tenants that wait."""
        return (account for account in self._accounts.values() if account.waiting)

    def _is_full(self, tokens: int) -> bool:
        return self.requests >= self._bounds.requests_max or self.tokens + tokens > self._bounds.tokens_max

    def _newest_of_largest(self, entry: QueueEntry[T], queued: int) -> QueueEntry[T] | None:
        """Of the worst tier that waits; None where nobody has more there than the new one's tenant would."""
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
            account.part = self._parts.get(entry.tenant_id, 1.0)
        account.weight, account.tier = entry.weight, entry.tier
        account.tokens += entry.tokens
        account.pages += entry.pages
        waiting = account.waiting
        place = len(waiting)
        while place and waiting[place - 1].number > entry.number:
            place -= 1
        waiting.insert(place, entry)
        self._tiers[entry.tier] += 1
        self.requests += 1
        self.tokens += entry.tokens

    def _least(self) -> float:
        counters = [account.counter for account in self._accounts.values() if account.waiting]
        return min(counters) if counters else self._floor

    def _forget(self) -> None:
        """Drop what says nothing more: everything once nobody waits, and idle tenants that would be lifted anyway."""
        if not self.requests:
            self._accounts.clear()
            self._floor = 0.0
        elif len(self._accounts) > 2 * self._bounds.requests_max:
            least = self._least()
            for idle in [a for a in self._accounts.values() if not a.waiting and a.counter <= least]:
                del self._accounts[idle.tenant_id]
