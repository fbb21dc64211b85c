"""Which running batch requests give way: where better work lacks pages or adapter slots, the newest of them that free
enough end on their replica and wait again. The newest have least to lose.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from core.rank_classes import fits
from data_plane.gateway.scheduling.placement import (
    Candidate,
    PlacementCosts,
    PlacementQuery,
    is_one_too_many,
    pages_max,
)
from data_plane.gateway.scheduling.replica_load import BatchRun, Occupancy, ReplicaLoad, tag

_COMPARED_MAX: Final = 48
"""Replicas to compare for one waiting request: of more, the first that can serve it."""
_Batch = Mapping[Occupancy, BatchRun]  # oldest first


class _Place:
    """A replica with batch requests: all of them and those that may give way, newest first, with the pages that these
    hold. ``coming`` pages become free there, without those that a request has been promised.
    """

    __slots__ = ("able", "able_pages", "candidate", "coming", "here")

    def __init__(self, candidate: Candidate, here: list[Occupancy], batch: _Batch) -> None:
        self.candidate = candidate
        self.here = here
        self.able = [each for each in here if not each.leaving and batch[each].may_give_way]
        self.able_pages = _pages(self.able)
        self.coming = _pages(each for each in here if each.leaving)

    def chosen(self, query: PlacementQuery, costs: PlacementCosts) -> list[Occupancy] | None:
        """The requests that must give way to a waiting request; None where it cannot run here."""
        candidate, request = self.candidate, query.request
        status, load, adapter = candidate.status, candidate.load, request.adapter
        if (
            status.pool in request.closed_pools
            or status.id in query.failed_by
            or not fits(request.rank, status.rank_max)
        ):
            return None
        pages = request.pages(status.block_tokens)
        room = pages_max(candidate, query, costs) - load.taken_pages
        crowded = adapter != "" and not query.overdue and is_one_too_many(candidate, adapter, tag(adapter))
        if pages <= room and not crowded:
            return None  # it has room that placement did not give: another gateway keeps it for an overdue request
        missing = pages - room - self.coming
        if missing > self.able_pages or pages > status.pages_total:
            return None
        if not crowded:
            return _newest(self.able, missing)
        of_slot = self._of_one_slot()
        if of_slot is None:
            return None
        more = [each for each in self.able if each not in of_slot]
        return of_slot + _newest(more, missing - _pages(of_slot))

    def _of_one_slot(self) -> list[Occupancy] | None:
        """All requests of the newest adapter that only batch requests use here; none where such a slot is being freed
        already, and None where no adapter is used by them alone.
        """
        load, able = self.candidate.load, set(self.able)
        by_adapter: dict[str, list[Occupancy]] = {}
        for each in self.here:
            by_adapter.setdefault(each.adapter, []).append(each)
        for adapter, here in by_adapter.items():
            alone = len(here) == load.adapters.get(adapter) and tag(adapter) not in load.elsewhere
            if alone and all(each in able or each.leaving for each in here):
                return [each for each in here if each in able]
        return None

    def end(self, chosen: list[Occupancy], pages: int, batch: _Batch) -> None:
        """Let requests give way to one that takes so many pages."""
        gone = _pages(chosen)
        self.able = [each for each in self.able if each not in chosen]
        self.able_pages -= gone
        self.coming += gone - pages
        _end(chosen, batch)


def make_room(
    waiting: Iterable[PlacementQuery], candidates: Iterable[Candidate], batch: _Batch, costs: PlacementCosts
) -> None:
    """Let batch requests give way to waiting requests, in their order, each where that ends the fewest pages."""
    by_load: dict[ReplicaLoad | None, list[Occupancy]] = {}
    for each in reversed(list(batch)):
        by_load.setdefault(each.load, []).append(each)
    places = [
        place
        for candidate in candidates
        if candidate.load in by_load and candidate.status.state == "ready"
        for place in [_Place(candidate, by_load[candidate.load], batch)]
        if place.able or place.coming
    ]
    places.sort(key=attrgetter("candidate.status.id"))
    for query in waiting:
        found = ((chosen, place) for place in places if (chosen := place.chosen(query, costs)) is not None)
        best: tuple[int, list[Occupancy], _Place] | None = None
        for chosen, place in islice(found, _COMPARED_MAX):
            pages = _pages(chosen)
            if best is None or pages < best[0]:
                best = pages, chosen, place
            if not pages:
                break
        if best is not None:
            _, chosen, place = best
            place.end(chosen, query.request.pages(place.candidate.status.block_tokens), batch)


def leave(pages: int, candidates: Iterable[Candidate], batch: _Batch) -> None:
    """Let the newest batch requests on these replicas give way until this many pages become free, or all of them, for
    the work of other gateways.
    """
    loads = {candidate.load for candidate in candidates}
    there = [each for each in reversed(list(batch)) if each.load in loads]
    able = [each for each in there if not each.leaving and batch[each].may_give_way]
    _end(_newest(able, pages - _pages(each for each in there if each.leaving)), batch)


def _newest(able: Sequence[Occupancy], missing: int) -> list[Occupancy]:
    """The newest requests that hold the missing pages; all where they hold fewer."""
    chosen: list[Occupancy] = []
    for each in able:
        if missing <= 0:
            break
        chosen.append(each)
        missing -= each.pages
    return chosen


def _end(chosen: Iterable[Occupancy], batch: _Batch) -> None:
    for each in chosen:
        each.leaving = True
        batch[each].give_way()


def _pages(requests: Iterable[Occupancy]) -> int:
    return sum(each.pages for each in requests)
