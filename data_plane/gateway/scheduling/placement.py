"""Which replica should serve a request: one pure function over a snapshot of the replicas. It does not decide waiting.

The view of other gateways is as old as their last message and Redis's last answer. Pages become exact when they are
reserved (Redis decides), adapters in use are what other gateways reported last, and queued prompts are those of this
process.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from core.adapter_names import digest_of
from core.contracts.replicas import ReplicaStatus, Residency, Tier
from core.rank_classes import fits
from core.rendezvous_hash import draw
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.replica_load import ReplicaLoad, tag

_EMPTY: Final = frozenset[str]()  # the default of sets of replicas and of adapters
_NOTHING_LEFT: Final[Mapping[str, float]] = {}
_ORDER: Final = itemgetter(slice(7))  # of all but the candidate itself
_SEQUENCES_LEFT: Final = 8  # batch leaves one in so many free: a request of another class then starts at once
_WARM_MAX: Final = 2  # replicas that count as warm for a session: its own, and the next one when that is full


@dataclass(frozen=True, slots=True)
class Resident:
    """Where one replica keeps adapters: engine names in slots and in host memory, digests on its disk."""

    slots: frozenset[str] = _EMPTY
    memory: frozenset[str] = _EMPTY
    disk: frozenset[str] = _EMPTY

    @classmethod
    def of(cls, residency: Residency) -> "Resident":
        """Index a replica's published residency for look-ups."""
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
        """Pages that no reservation holds. The engine has more free pages, since a reservation is a ceiling, but
        reports them a second late.
        """
        return self.status.pages_total - self.load.taken_pages

    @property
    def running(self) -> int:
        """Requests on the replica: the larger of this process's number now and all gateways' at the last heartbeat."""
        return max(self.load.requests, self.status.running_requests + self.status.waiting_requests)


class Homes(NamedTuple):
    """The replicas among which an adapter and a session draw their home, of more than are ranked."""

    of_adapter: frozenset[str]
    of_session: frozenset[str]


class PlacementQuery(msgspec.Struct, frozen=True):
    """A request, as placement sees it now. With ``headroom`` it may take the last pages of a replica. ``overdue`` means
    that it has waited so long that one adapter too many on a replica is the lesser harm. ``failed_by`` are the replicas
    that recently failed to load its adapter. Of a replica it leaves the share of its pool in ``left_free``, which has
    the pools that requests of other classes used in the last minute.
    """

    request: InferenceRequest
    headroom: bool = True
    overdue: bool = False
    failed_by: frozenset[str] = _EMPTY
    left_free: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCosts:
    """Costs in milliseconds until a first token: loading an adapter from the object store, from disk, into a slot
    (while every running request waits); one prompt token; and each request that already runs on the replica.
    ``headroom_share`` is the share of pages kept for tenants below their fair share.
    """

    store_ms: float
    disk_ms: float
    slot_ms: float
    prompt_token_ms: float
    running_ms: float
    headroom_share: float


class Ranking(msgspec.Struct, frozen=True):
    """The replicas that could serve a request, each list best first: ``now`` have room in this snapshot, ``full`` lack
    pages, and ``crowded`` run other adapters in all their slots.
    """

    now: list[Candidate]
    full: list[Candidate]
    crowded: list[Candidate]

    @property
    def able(self) -> list[Candidate]:
        """All replicas that could serve the request."""
        return self.now + self.full + self.crowded


NO_REPLICA: Final = Ranking([], [], [])


def rank(
    candidates: Iterable[Candidate],
    query: PlacementQuery,
    costs: PlacementCosts,
    *,
    tried: Set[str] = _EMPTY,
    homes: Homes | None = None,
) -> Ranking:
    """Order the replicas for one request: those of its base model that are ready, whose pool serves it, that accept its
    rank, can ever hold its pages and are not in ``tried``. The same snapshot gives the same answer. Without ``homes``
    any of the candidates may be one.

    A replica with as many adapters in use as slots accepts no other adapter unless the request is overdue: the
    adapters would swap in turn, and each swap delays every request. A tenant's dedicated pool comes first, then the
    cheapest rank class (a larger one pays for its rank with KV pages), then the fewest milliseconds to a first token.

    A replica that recently failed to load the adapter is left out while any other replica remains, even a full one: a
    wait is bounded, and so is the time for which a failure is remembered.
    """
    request = query.request
    base_model, adapter, rank_least = request.base_model, request.adapter, request.rank
    pages_by_block = dict[int, int]()
    able: list[Candidate] = []
    users = 0
    for candidate in candidates:
        status = candidate.status
        if status.state != "ready" or status.base_model != base_model or status.id in tried:
            continue
        if status.pool in request.closed_pools:
            continue
        block = status.block_tokens
        pages = pages_by_block.get(block)
        if pages is None:
            pages = pages_by_block[block] = request.pages(block)
        if not fits(rank_least, status.rank_max) or status.pages_total < pages:
            continue
        able.append(candidate)
        if adapter and adapter in candidate.resident.slots:
            users += candidate.load.adapters.get(adapter, 0)
    if query.failed_by:
        able = [candidate for candidate in able if candidate.status.id not in query.failed_by] or able
    its_tag = tag(adapter) if adapter else ""
    choice = len(able) > 1  # with one replica there is nothing to draw for
    saved = _saved_ms(able, request, costs, homes) if choice and request.affinity else {}
    rows = []
    for candidate in able:
        status = candidate.status
        cost_ms = _cost_ms(candidate, adapter, costs, users) - saved.get(status.id, 0.0)
        is_home = choice and adapter and (homes is None or status.id in homes.of_adapter)
        home = draw(adapter, status.id) if is_home else 0
        crowded = adapter != "" and is_one_too_many(candidate, adapter, its_tag)
        rank_max = status.rank_max if adapter else 0
        shared = status.pool not in request.own_pools
        rows.append((crowded, shared, rank_max, cost_ms, -home, -candidate.free_pages, status.id, candidate))
    rows.sort(key=_ORDER)
    return _by_room([(row[0], row[-1]) for row in rows], query, costs, pages_by_block)


def _by_room(
    ordered: list[tuple[bool, Candidate]], query: PlacementQuery, costs: PlacementCosts, pages_by_block: dict[int, int]
) -> Ranking:
    """Candidates in their order, each with whether it is crowded, by whether they have room."""
    ranking = Ranking([], [], [])
    for crowded, candidate in ordered:
        if crowded and not query.overdue:
            ranking.crowded.append(candidate)
        elif candidate.load.taken_pages + pages_by_block[candidate.status.block_tokens] <= pages_max(
            candidate, query, costs
        ):
            ranking.now.append(candidate)
        else:
            ranking.full.append(candidate)
    return ranking


def _saved_ms(
    able: list[Candidate], request: InferenceRequest, costs: PlacementCosts, homes: Homes | None
) -> dict[str, float]:
    """What a prefix cache should save a session: its whole prompt on the replica it drew, half of it on the second."""
    names = [each.status.id for each in able if homes is None or each.status.id in homes.of_session]
    ids = sorted([(draw(request.affinity, name), name) for name in names], reverse=True)[:_WARM_MAX]
    whole_ms = request.prompts[0] * costs.prompt_token_ms
    return {name: whole_ms / (1 + place) for place, (_, name) in enumerate(ids)}


def open_pages(candidate: Candidate, costs: PlacementCosts) -> int:
    """KV pages that any tenant may take; a tenant below its fair share may take the rest as well."""
    return candidate.status.pages_total - int(candidate.status.pages_total * costs.headroom_share)


def pages_max(candidate: Candidate, query: PlacementQuery, costs: PlacementCosts) -> int:
    """How many pages may be held on a replica with this request. A tenant at its fair share leaves the last pages to
    others, unless its request could then never run. Batch leaves more of them, except for one request at a time that
    is larger than the rest: it would wait as long as others arrive, and it gives way to them. It finds no room where
    too many requests run for batch.
    """
    status = candidate.status
    total, open_to_all = status.pages_total, open_pages(candidate, costs)
    left_free = query.left_free or _NOTHING_LEFT
    if query.request.is_batch and _is_busy(candidate, others=status.pool in left_free):
        return 0
    if query.headroom or (pages := query.request.pages(status.block_tokens)) > open_to_all:
        return total
    share = left_free.get(status.pool, 0.0)
    if not share or (pages > (rest := int(total * (1 - share))) and not candidate.load.batch_requests):
        return open_to_all
    return min(open_to_all, rest)


def _is_busy(candidate: Candidate, *, others: bool) -> bool:
    """Whether the replica runs too many requests for another one of batch, but one may always run. Some of the engine's
    sequences stay free. Where ``others`` use the pool, their tokens must stay fast.
    """
    status, running = candidate.status, candidate.running
    if not candidate.load.batch_requests:
        return False
    sequences = status.sequences - -(-status.sequences // _SEQUENCES_LEFT)
    return (status.sequences > 0 and running >= sequences) or (others and 0 < status.batch_requests_max <= running)


def is_one_too_many(candidate: Candidate, adapter: str, its_tag: str) -> bool:
    """Whether the replica would have more adapters in use than slots with this one."""
    load = candidate.load
    return load.adapters_in_use >= max(1, candidate.status.slots) and not load.runs(adapter, its_tag)


def _cost_ms(candidate: Candidate, adapter: str, costs: PlacementCosts, users: int) -> float:
    """Milliseconds until a first token, without the part that is the same on every replica."""
    waits = candidate.load.prompt_tokens * costs.prompt_token_ms + candidate.running * costs.running_ms
    return waits + _adapter_ms(candidate, adapter, costs, users) if adapter else waits


def _adapter_ms(candidate: Candidate, adapter: str, costs: PlacementCosts, users: int) -> float:
    """What loading the adapter costs this request and the requests that it delays, divided by all running requests of
    the adapter, since the next ones use it as well. This spreads a hot adapter and keeps a cold one on its home
    replica.
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
        return own / 2  # another request's load of it is under way
    stalled = costs.slot_ms * candidate.running
    evicted = costs.slot_ms if len(candidate.resident.slots) >= candidate.status.slots else 0.0
    return (own + stalled + evicted) / (1 + users)
