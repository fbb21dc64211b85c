"""Which batch requests give way to a request that lacks pages or a slot."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from data_plane.gateway.admission.giving_way import leave, make_room
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, PlacementQuery
from data_plane.gateway.scheduling.replica_load import Occupancy, ReplicaLoad, Shares
from tests.fixtures.gateway.requests import inference_request, replica_status

COSTS = PlacementCosts(store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0)
PAGES = 32
ADAPTERS = [f"ad_{number}@{number:064x}" for number in range(4)]


@dataclass(eq=False)
class Run:
    """A batch request on a replica."""

    candidate: Candidate
    occupancy: Occupancy
    may_give_way: bool = True
    gave_way: bool = False

    def give_way(self) -> None:
        assert self.may_give_way
        assert not self.gave_way
        self.gave_way = True


class Stage:
    """Replicas with batch requests, and others that no request may end."""

    def __init__(self, replicas: int = 1, *, slots: int = 4) -> None:
        self.shares = Shares()
        self.runs: list[Run] = []
        self.candidates = [
            Candidate(replica_status(f"rep_{number}", pages_total=PAGES, slots=slots, rank_max=8), ReplicaLoad())
            for number in range(replicas)
        ]

    def occupy(self, pages: int, *, on: int = 0, adapter: str = "") -> Occupancy:
        load = self.candidates[on].load
        occupancy = Occupancy(
            load, self.shares, tenant_id="tn", weight=1, pages=pages, prompt_tokens=0, adapter=adapter
        )
        occupancy.answered(load.held_pages + pages, granted_pages=pages)
        return occupancy

    def run(self, pages: int, *, on: int = 0, adapter: str = "", may_give_way: bool = True) -> Run:
        run = Run(self.candidates[on], self.occupy(pages, on=on, adapter=adapter), may_give_way)
        self.runs.append(run)
        run.occupancy.begin_batch(run)
        return run

    def change(self, on: int, **changes: object) -> None:
        candidate = self.candidates[on]
        self.candidates[on] = structs.replace(candidate, status=structs.replace(candidate.status, **changes))

    def make_room(self, *wanted: PlacementQuery) -> list[Run]:
        make_room(wanted, self.candidates, self.shares.batch, COSTS)
        return self.ended()

    def leave(self, pages: int, *on: int) -> list[Run]:
        leave(pages, [self.candidates[each] for each in on or (0,)], self.shares.batch)
        return self.ended()

    def ended(self) -> list[Run]:
        return [run for run in self.runs if run.gave_way]


def query(pages: int, adapter: str = "") -> PlacementQuery:
    return PlacementQuery(inference_request(prompt_tokens=16, max_tokens=16 * (pages - 1), adapter=adapter, rank=8))


def test_the_newest_that_free_enough_give_way():
    stage = Stage()
    runs = [stage.run(8) for _ in range(4)]
    assert stage.make_room(query(9)) == runs[2:]


def test_nothing_gives_way_in_vain():
    stage = Stage()
    stage.occupy(20)
    stage.run(12)
    assert stage.make_room(query(13)) == []


def test_a_request_whose_answer_has_begun_stays():
    stage = Stage()
    first = stage.run(16)
    stage.run(16, may_give_way=False)
    assert stage.make_room(query(4)) == [first]


def test_pages_on_their_way_are_not_freed_twice_and_belong_to_one_request():
    stage = Stage()
    runs = [stage.run(8) for _ in range(4)]
    assert stage.make_room(query(8)) == runs[3:]
    assert stage.make_room(query(8)) == runs[3:], "the first one's pages are on their way"
    assert stage.make_room(query(8), query(8)) == runs[2:]


def test_it_happens_where_it_ends_the_fewest_pages():
    stage = Stage(2)
    stage.run(32)
    small = stage.run(4, on=1)
    stage.occupy(28, on=1)
    assert stage.make_room(query(4)) == [small]


def test_a_slot_is_freed_of_the_newest_adapter_that_only_batch_uses():
    stage = Stage(slots=2)
    stage.occupy(1, adapter=ADAPTERS[0])
    kept = stage.run(1, adapter=ADAPTERS[0])
    ended = [stage.run(1, adapter=ADAPTERS[1]) for _ in range(2)]
    assert stage.make_room(query(2, ADAPTERS[2])) == ended
    assert not kept.gave_way
    assert stage.make_room(query(2, ADAPTERS[2])) == ended, "a slot is on its way"


def test_other_gateways_work_ends_the_newest():
    stage = Stage()
    runs = [stage.run(8) for _ in range(4)]
    assert stage.leave(9) == runs[2:]
    assert stage.leave(16) == runs[2:], "their pages are on their way"


def test_all_give_way_where_other_gateways_lack_more_pages_than_batch_holds():
    stage = Stage()
    stage.occupy(12)
    streams = stage.run(4, may_give_way=False)
    runs = [stage.run(8) for _ in range(2)]
    assert stage.leave(30) == runs
    assert not streams.gave_way


def test_batch_stays_where_other_gateways_work_cannot_run():
    stage = Stage(2)
    here, there = stage.run(8), stage.run(8, on=1)
    assert stage.leave(4, 0) == [here]
    assert not there.gave_way


@pytest.mark.parametrize(
    "changes", [{"state": "draining"}, {"state": "starting"}, {"id": "failed"}, {"pool": "closed"}, {"rank_max": 4}]
)
def test_batch_gives_way_only_on_a_replica_that_can_serve_the_request(changes):
    """Even where it would cost the fewest pages."""
    stage = Stage(2)
    stage.occupy(24)
    stage.run(8)
    stage.change(0, **changes)
    full = stage.run(32, on=1)
    wanted = query(8, ADAPTERS[0])
    wanted = structs.replace(
        wanted,
        failed_by=frozenset({"failed"}),
        request=structs.replace(wanted.request, closed_pools=frozenset({"closed"})),
    )
    assert stage.make_room(wanted) == [full]


def test_room_that_placement_does_not_give_counts_for_nothing():
    """Another gateway keeps it for an overdue request."""
    stage = Stage(2)
    stage.run(1)
    full = stage.run(32, on=1)
    assert stage.make_room(query(8)) == [full]


def test_a_request_that_was_moved_may_give_way_again():
    stage = Stage(2)
    run = stage.run(32)
    assert stage.make_room(query(4)) == [run]
    run.occupancy.give_back()  # its attempt failed by itself at that moment, and another replica takes it
    run.gave_way, run.candidate, run.occupancy = False, stage.candidates[1], stage.occupy(32, on=1)
    run.occupancy.begin_batch(run)
    stage.occupy(32)
    assert stage.make_room(query(4)) == [run]


def test_a_request_that_leaves_is_known_no_longer():
    stage = Stage()
    stage.run(8).occupancy.give_back()
    assert not stage.shares.batch


sizes = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 1), st.booleans()), max_size=12)


@given(sizes, st.integers(1, PAGES))
def test_exactly_the_newest_that_are_needed_give_way_on_one_replica(runs, wanted):
    stage = Stage(2)
    for pages, on, may_give_way in runs:
        if stage.candidates[on].free_pages >= pages:
            stage.run(pages, on=on, may_give_way=may_give_way)
    able = {
        each.status.id: each.free_pages
        + sum(run.occupancy.pages for run in stage.runs if run.candidate is each and run.may_give_way)
        for each in stage.candidates
    }
    full = [each for each in stage.candidates if each.free_pages < wanted]  # placement has not chosen the others
    gave_way = stage.make_room(query(wanted))
    if max((able[each.status.id] for each in full), default=0) < wanted:
        assert gave_way == []
        return
    (replica,) = {run.candidate.status.id: run.candidate for run in gave_way}.values()
    newest = [run for run in stage.runs if run.candidate is replica and run.may_give_way][-len(gave_way) :]
    assert gave_way == newest
    assert replica in full
    freed = [run.occupancy.pages for run in gave_way]
    assert replica.free_pages + sum(freed) >= wanted > replica.free_pages + sum(freed[1:])
