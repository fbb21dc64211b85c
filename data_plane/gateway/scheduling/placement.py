"""Which replica should serve a request: one pure function over a snapshot of the replicas. Waiting is not decided here.

What it sees of other gateways is as old as the last heartbeat and the last answer of Redis: pages are exact when they
are taken (Redis decides), adapters in work are what others told last, prompts in the queue are this process's own.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import msgspec

from core import kv_pages
from core.adapter_names import digest_of
from core.contracts.replicas import ReplicaStatus, Residency, Tier
from core.rank_classes import fits
from core.rendezvous_hash import draw
from data_plane.gateway.scheduling.replica_load import ReplicaLoad, tag

_NOBODY: Final = frozenset[str]()
_ORDER: Final = itemgetter(slice(6))  # of all but the candidate itself
_WARM_MAX: Final = 2  # so many replicas are a session's: its own, and the next where that one is full


@dataclass(frozen=True, slots=True)
class Resident:
    """Where adapters lie on one replica: engine names in slots and in host memory, digests on its disk."""

    slots: frozenset[str] = _NOBODY
    memory: frozenset[str] = _NOBODY
    disk: frozenset[str] = _NOBODY

    @classmethod
    def of(cls, residency: Residency) -> "Resident":
        """A replica's published residency, as placement looks it up."""
        return cls(
            frozenset(name for name in residency.slots if name is not None),
            frozenset(residency.memory),
            frozenset(residency.disk),
        )

    def tier(self, engine_name: str) -> Tier:
        """The fastest tier that has this adapter."""
        if engine_name in self.slots:
            return "slot"
        if engine_name in self.memory:
            return "memory"
        return "disk" if digest_of(engine_name) in self.disk else "store"


NOTHING_RESIDENT: Final = Resident()


class Candidate(msgspec.Struct, frozen=True):
    """A live replica."""

    status: ReplicaStatus
    load: ReplicaLoad
    resident: Resident = NOTHING_RESIDENT

    @property
    def free_pages(self) -> int:
        """What reservations leave. The engine has more, since a reservation is a ceiling, and says so a second late."""
        return self.status.pages_total - self.load.taken_pages

    @property
    def running(self) -> int:
        """Requests there: this process's now, or everybody's at the last heartbeat, whichever is more."""
        return max(self.load.requests, self.status.running_requests + self.status.waiting_requests)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs of a replica. A base model's ``engine_name`` is its id, and its ``rank`` 0.

    ``affinity`` names its session or prefix ("" for none). ``headroom`` is true for who may take a replica's last
    pages, ``overdue`` for who has waited so long that an adapter too many is the lesser harm. ``failed_by`` are the
    replicas that could not bring its adapter in lately.
    """

    base_model: str
    engine_name: str
    sequences: int
    sequence_tokens: int
    prompt_tokens: int
    rank: int = 0
    affinity: str = ""
    headroom: bool = True
    overdue: bool = False
    failed_by: frozenset[str] = _NOBODY

    @property
    def adapter(self) -> str:
        """Its engine name where that is an adapter's, else ""."""
        return "" if self.engine_name == self.base_model else self.engine_name

    def pages(self, block_tokens: int) -> int:
        """KV pages it may take at most on an engine with blocks of this size: prompt and outputs, in whole blocks."""
        return self.sequences * kv_pages.pages_for(self.sequence_tokens, block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCosts:
    """What things cost in milliseconds until a first token: an adapter from the store, from the disk, into a slot (in
    which every running request waits); a token of a prompt; and each request that runs there already.
    """

    store_ms: float
    disk_ms: float
    slot_ms: float
    prompt_token_ms: float
    running_ms: float
    headroom_share: float


class Ranking(msgspec.Struct, frozen=True):
    """The replicas that could serve a request, each list best first: ``now`` have room by this snapshot, ``full`` lack
    pages, and ``crowded`` run other adapters in all their slots.
    """

    now: list[Candidate]
    full: list[Candidate]
    crowded: list[Candidate]

    @property
    def able(self) -> list[Candidate]:
        """All of them."""
        return self.now + self.full + self.crowded


NOWHERE: Final = Ranking([], [], [])


def rank(candidates: Iterable[Candidate], wish: Wish, costs: PlacementCosts, *, tried: Set[str] = _NOBODY) -> Ranking:
    """Order the replicas for one request: those of its base model that are ready, take its rank, can ever hold its
    pages and were not ``tried``.

    A replica with as many adapters in work as slots takes no other one unless the request is overdue: they would swap
    in turn, each time holding up every request. The cheapest rank class comes first (a larger one pays for its rank
    with KV pages), then the fewest milliseconds to a first token. Same snapshot, same answer.

    A replica that has just failed to bring the adapter in comes behind every other, full ones too: it is not named
    while there is any. A wait has a bound, and so has the time for which a failure is remembered.
    """
    adapter, pages_by_block = wish.adapter, dict[int, int]()
    able: list[Candidate] = []
    users = 0
    for candidate in candidates:
        status = candidate.status
        if status.state != "ready" or status.base_model != wish.base_model or status.id in tried:
            continue
        block = status.block_tokens
        pages = pages_by_block.get(block)
        if pages is None:
            pages = pages_by_block[block] = wish.pages(block)
        if not fits(wish.rank, status.rank_max) or status.pages_total < pages:
            continue
        able.append(candidate)
        if adapter and adapter in candidate.resident.slots:
            users += candidate.load.adapters.get(adapter, 0)
    if wish.failed_by:
        able = [candidate for candidate in able if candidate.status.id not in wish.failed_by] or able
    its_tag = tag(adapter) if adapter else ""
    choice = len(able) > 1  # else there is nothing to draw for
    saved = _saved_ms(able, wish, costs) if choice and wish.affinity else {}
    rows = []
    for candidate in able:
        status = candidate.status
        cost_ms = _cost_ms(candidate, wish, costs, users) - saved.get(status.id, 0.0)
        home = draw(adapter, status.id) if choice and adapter else 0
        crowded = adapter != "" and _is_one_too_many(candidate, adapter, its_tag)
        rank_max = status.rank_max if adapter else 0
        rows.append((crowded, rank_max, cost_ms, -home, -candidate.free_pages, status.id, candidate))
    rows.sort(key=_ORDER)
    ranking = Ranking([], [], [])
    for crowded, *_, candidate in rows:
        if crowded and not wish.overdue:
            ranking.crowded.append(candidate)
        elif candidate.load.taken_pages + pages_by_block[candidate.status.block_tokens] <= pages_max(
            candidate, wish, costs
        ):
            ranking.now.append(candidate)
        else:
            ranking.full.append(candidate)
    return ranking


def _saved_ms(able: list[Candidate], wish: Wish, costs: PlacementCosts) -> dict[str, float]:
    """What a prefix cache should save a session: its whole prompt on the replica it drew, half on its second."""
    ids = sorted([(draw(wish.affinity, c.status.id), c.status.id) for c in able], reverse=True)[:_WARM_MAX]
    whole_ms = wish.prompt_tokens * costs.prompt_token_ms
    return {name: whole_ms / (1 + place) for place, (_, name) in enumerate(ids)}


def open_pages(candidate: Candidate, costs: PlacementCosts) -> int:
    """KV pages that are open to all; who has less than its share may take the last ones as well."""
    return candidate.status.pages_total - int(candidate.status.pages_total * costs.headroom_share)


def pages_max(candidate: Candidate, wish: Wish, costs: PlacementCosts) -> int:
    """How many pages may be held on a replica with this request: who has its share leaves the last ones to others,
    unless it could never run then.
    """
    total, open_to_all = candidate.status.pages_total, open_pages(candidate, costs)
    return total if wish.headroom or wish.pages(candidate.status.block_tokens) > open_to_all else open_to_all


def _is_one_too_many(candidate: Candidate, adapter: str, its_tag: str) -> bool:
    """Whether this adapter would make more in work than the replica has slots."""
    load = candidate.load
    return load.in_work >= max(1, candidate.status.slots) and not load.runs(adapter, its_tag)


def _cost_ms(candidate: Candidate, wish: Wish, costs: PlacementCosts, users: int) -> float:
    """Milliseconds until a first token, as far as they differ between replicas."""
    waits = candidate.load.prompt_tokens * costs.prompt_token_ms + candidate.running * costs.running_ms
    return waits + _adapter_ms(candidate, wish.adapter, costs, users) if wish.adapter else waits


def _adapter_ms(candidate: Candidate, adapter: str, costs: PlacementCosts, users: int) -> float:
    """What bringing the adapter in costs, for this request and for those that are held up by it; shared out over all
    its running requests, since the next of them use it as well. That is what spreads a hot adapter and keeps a cold one
    home.
    """
    tier = candidate.resident.tier(adapter)
    if tier == "slot":
        return 0.0
    own = costs.slot_ms
    if tier != "memory":
        own += costs.disk_ms
    if tier == "store":
        own += costs.store_ms
    if adapter in candidate.load.adapters:
        return own / 2  # it is on its way, for somebody else
    stalled = costs.slot_ms * candidate.running
    evicted = costs.slot_ms if len(candidate.resident.slots) >= candidate.status.slots else 0.0
    return (own + stalled + evicted) / (1 + users)
