"""Which of many replicas are worth ranking for a request, so that placement costs the same with 10,000 as with 48.

Of few replicas all are ranked. Of more these are: some that hold the adapter, the homes of the adapter and of the
session, and then those with the most room, in turn, so that requests of one moment do not all choose the same. Homes
lie on a ring (consistent hashing): they are found without a draw for each replica, and when a replica comes or goes,
only keys beside it move.
"""

import heapq
import itertools
import zlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from core.adapter_names import digest_of
from core.contracts.replicas import ReplicaStatus
from core.rank_classes import fits
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.placement import Candidate, Homes, Resident

RANKED_MAX: Final = 48
_HOLDERS_MAX: Final = 12
_HOMES: Final = 6  # for a key; placement draws among them, which evens out the gaps of the ring
_ROOMY_MAX: Final = 256
_EMPTY: Final[dict[str, None]] = {}


class Shortlist(NamedTuple):
    """Replicas to rank. ``homes`` is None where all of their group are listed: then each draws for itself."""

    candidates: list[Candidate]
    homes: Homes | None = None


class CandidateIndex:
    """The replicas of one base model and one rank class, by what they hold and by the room that they have."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        self._holders: dict[str, dict[str, None]] = {}  # ids by engine name, and by digest of those on their disk
        self._ring: list[tuple[int, str]] = []
        self._roomy: list[str] = []
        self._freed: dict[str, None] = {}
        self._turn = 0

    def put(self, candidate: Candidate) -> None:
        """Add a replica, or replace what is known of it."""
        name = candidate.status.id
        before = self.candidates.get(name)
        self.candidates[name] = candidate
        if before is None:
            insort(self._ring, (_point(name), name))
        self._hold(name, None if before is None else before.resident, candidate.resident)

    def remove(self, name: str) -> None:
        """Forget a replica that is there."""
        before = self.candidates.pop(name)
        del self._ring[bisect_left(self._ring, (_point(name), name))]
        self._hold(name, before.resident, None)

    def sort_by_room(self) -> None:
        """Look which replicas have the most room now. ``freed`` tells of others until the next time."""
        ready = (candidate for candidate in self.candidates.values() if candidate.status.state == "ready")
        roomiest = heapq.nlargest(_ROOMY_MAX, ready, key=attrgetter("free_pages"))
        self._roomy, self._freed = [candidate.status.id for candidate in roomiest], {}

    def free(self, name: str) -> None:
        """A request has left this replica."""
        if name in self.candidates:
            self._freed[name] = None

    def roomy(self) -> list[Candidate]:
        """The replicas with the most room, and those that requests have left since; all of a small group."""
        if len(self.candidates) <= RANKED_MAX:
            return list(self.candidates.values())
        newest = itertools.islice(reversed(self._freed), RANKED_MAX)
        return self._found(dict.fromkeys((*newest, *self._roomy[:RANKED_MAX])))

    def shortlist(self, adapter: str, digest: str, session: str) -> Shortlist:
        """The replicas to rank for a request. ``adapter``, its ``digest`` and ``session`` may be empty."""
        if len(self.candidates) <= RANKED_MAX:
            return Shortlist(list(self.candidates.values()))
        self._turn += _HOLDERS_MAX
        homes = Homes(frozenset(self._homes(adapter)), frozenset(self._homes(session)))
        holders = self._in_turn(self._holders.get(adapter, _EMPTY), _HOLDERS_MAX)
        on_disk = self._in_turn(self._holders.get(digest, _EMPTY), _HOLDERS_MAX - len(holders))
        names = dict.fromkeys((*holders, *on_disk, *homes.of_adapter, *homes.of_session))
        roomy = self._in_turn(self._roomy, RANKED_MAX)
        names |= dict.fromkeys(itertools.islice((name for name in roomy if name not in names), RANKED_MAX - len(names)))
        return Shortlist(self._found(names), homes)

    def _homes(self, key: str) -> Iterator[str]:
        """The next replicas on the ring after the key's point; none for an empty key."""
        if key:
            first = bisect_left(self._ring, (_point(key), ""))
            for place in range(first, first + min(_HOMES, len(self._ring))):
                yield self._ring[place % len(self._ring)][1]

    def _in_turn(self, names: dict[str, None] | Sequence[str], most: int) -> list[str]:
        """Up to ``most`` of these names. Each call for a shortlist begins at another name."""
        if len(names) <= most:
            return list(names)
        start = self._turn % len(names)
        return list(itertools.islice(itertools.chain(itertools.islice(names, start, None), names), most))

    def _found(self, names: dict[str, None]) -> list[Candidate]:
        return [self.candidates[name] for name in names if name in self.candidates]

    def _hold(self, name: str, before: Resident | None, after: Resident | None) -> None:
        if before is after:
            return
        held, holds = _names(before), _names(after)
        for each in held - holds:
            holders = self._holders[each]
            del holders[name]
            if not holders:
                del self._holders[each]
        for each in holds - held:
            self._holders.setdefault(each, {})[name] = None


class CandidatePool:
    """The replicas of one base model. Each rank class has its own index: of many replicas with small ranks, none can
    serve an adapter with a large one.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, CandidateIndex] = {}

    def put(self, candidate: Candidate) -> None:
        """Add a replica, or replace what is known of it."""
        rank_max = candidate.status.rank_max
        if rank_max not in self._by_rank:
            self._by_rank[rank_max] = CandidateIndex()
        self._by_rank[rank_max].put(candidate)

    def remove(self, candidate: Candidate) -> None:
        """Forget a replica as it was put here."""
        rank_max = candidate.status.rank_max
        self._by_rank[rank_max].remove(candidate.status.id)
        if not self._by_rank[rank_max].candidates:
            del self._by_rank[rank_max]

    def __iter__(self) -> Iterator[Candidate]:
        """All replicas."""
        return itertools.chain.from_iterable(index.candidates.values() for index in self._by_rank.values())

    def sort_by_room(self) -> None:
        """Look which replicas have the most room now."""
        for index in self._by_rank.values():
            index.sort_by_room()

    def free(self, status: ReplicaStatus) -> None:
        """A request has left this replica."""
        if index := self._by_rank.get(status.rank_max):
            index.free(status.id)

    def roomy(self) -> list[Candidate]:
        """The replicas where a waiting request may find room."""
        return [candidate for index in self._by_rank.values() for candidate in index.roomy()]

    def shortlist(self, request: InferenceRequest) -> Shortlist:
        """The replicas to rank for a request: those of each rank class that fits it."""
        adapter = request.adapter
        digest = digest_of(adapter) if adapter else ""
        lists = [
            index.shortlist(adapter, digest, request.affinity)
            for rank_max, index in self._by_rank.items()
            if fits(request.rank, rank_max)
        ]
        if len(lists) == 1:
            return lists[0]
        candidates = [candidate for each in lists for candidate in each.candidates]
        return Shortlist(candidates, None if all(each.homes is None for each in lists) else _all_homes(lists))


def _all_homes(lists: Sequence[Shortlist]) -> Homes:
    """Homes in several classes. In a class that is listed whole, each replica may be one."""
    found = [each.homes or Homes(*[frozenset(c.status.id for c in each.candidates)] * 2) for each in lists]
    of_adapter, of_session = (frozenset[str]().union(*sets) for sets in zip(*found, strict=True))
    return Homes(of_adapter, of_session)


def _names(resident: Resident | None) -> frozenset[str]:
    return frozenset() if resident is None else resident.slots | resident.memory | resident.disk


def _point(key: str) -> int:
    """A place on the ring, 32 bits. CRC-32 of similar names lie close together; the product spreads them."""
    return (zlib.crc32(key.encode()) * 0x9E3779B97F4A7C15 >> 16) & 0xFFFFFFFF
