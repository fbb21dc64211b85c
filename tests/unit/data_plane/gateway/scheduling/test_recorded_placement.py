"""Placement on recorded moments of a data plane, as an additional gateway saw them and would decide."""

import random
from pathlib import Path

import pytest

from data_plane.gateway.admission.queue_scan import PoolCapacity
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, PlacementQuery, pages_max, rank
from data_plane.gateway.scheduling.replica_load import Occupancy, Shares, tag
from tests.fixtures.gateway.placement_snapshots import BASE_MODEL, Seen, read
from tests.fixtures.gateway.requests import inference_request

MOMENTS = {path.stem: read(path) for path in sorted((Path(__file__).parent / "snapshots").glob("*.json"))}
COSTS = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.05
)  # fmt: skip


def query(name: str, seen: Seen, *, overdue: bool = False, **changes) -> PlacementQuery:
    adapter = {} if name == BASE_MODEL else {"adapter": name, "rank": seen.ranks.get(name, 0)}
    request = inference_request(base_model=BASE_MODEL, prompt_tokens=12, max_tokens=48, **{**adapter, **changes})
    return PlacementQuery(request, overdue=overdue)


def queries(seen: Seen) -> list[PlacementQuery]:
    return [query(name, seen) for name in (*seen.ranks, BASE_MODEL)]


def test_the_recording_has_moments_of_each_kind():
    assert MOMENTS.keys() == {"busy", "cold", "short_of_room"}
    most = max(replica.held_pages / replica.status.pages_total for replica in MOMENTS["short_of_room"].replicas)
    assert most > 0.9
    assert {len(replica.adapters_in_use) for replica in MOMENTS["busy"].replicas} == {3}, "as many adapters as slots"
    assert len(MOMENTS["short_of_room"].replicas) < len(MOMENTS["busy"].replicas), "one replica had died"


@pytest.mark.parametrize("seen", MOMENTS.values(), ids=MOMENTS)
def test_the_order_in_which_replicas_are_read_does_not_matter(seen):
    for wanted in queries(seen):
        expected = [each.status.id for each in rank(seen.candidates(), wanted, COSTS).able]
        shuffled = seen.candidates()
        random.Random(1).shuffle(shuffled)
        assert [each.status.id for each in rank(shuffled, wanted, COSTS).able] == expected
        assert set(expected) == {
            each.status.id for each in seen.candidates() if each.status.rank_max >= wanted.request.rank
        }, "each that can serve it is named once"


@pytest.mark.parametrize("seen", MOMENTS.values(), ids=MOMENTS)
def test_no_replica_exceeds_its_slots_or_pages(seen):
    for wanted in queries(seen):
        for candidate in rank(seen.candidates(), wanted, COSTS).now:
            load = candidate.load
            assert load.taken_pages + wanted.request.pages(16) <= pages_max(candidate, wanted, COSTS)
            assert (
                not wanted.request.adapter
                or load.runs(wanted.request.adapter, tag(wanted.request.adapter))
                or load.adapters_in_use < candidate.status.slots
            )


@pytest.mark.parametrize("seen", MOMENTS.values(), ids=MOMENTS)
def test_an_adapter_that_runs_on_a_replica_with_room_is_not_loaded_again(seen):
    for wanted in queries(seen)[:-1]:
        ranking = rank(seen.candidates(), wanted, COSTS)
        if not ranking.now:
            continue
        there = [each for each in ranking.now if each.resident.tier(wanted.request.adapter) == "slot"]
        of_class = [each for each in there if each.status.rank_max == ranking.now[0].status.rank_max]
        if of_class:
            assert ranking.now[0] in of_class


@pytest.mark.parametrize("seen", MOMENTS.values(), ids=MOMENTS)
def test_pool_capacity_refuses_only_if_placement_does(seen):
    capacity = PoolCapacity(seen.candidates(), COSTS)
    for wanted in queries(seen):
        if capacity.lacks_slot(wanted) or capacity.lacks_pages(wanted):
            assert not rank(seen.candidates(), wanted, COSTS).now


def test_a_new_adapter_waits_for_a_slot_until_it_is_overdue():
    seen = MOMENTS["busy"]
    strange = f"ad_strange@{'0' * 64}"
    ranking = rank(seen.candidates(), query(strange, seen, rank=8), COSTS)
    assert not ranking.now
    assert len(ranking.crowded) == len(seen.replicas)
    overdue = rank(seen.candidates(), query(strange, seen, rank=8, overdue=True), COSTS)
    assert overdue.now
    assert overdue.now[0].status.rank_max == 16, "the cheaper class has room"
    assert rank(seen.candidates(), query(BASE_MODEL, seen), COSTS).now, "the base model needs no slot"


@pytest.mark.parametrize("seen", MOMENTS.values(), ids=MOMENTS)
def test_continued_placement_fills_every_replica_and_overfills_none(seen):
    candidates, shares = seen.candidates(), Shares()
    drawn = random.Random(2)
    placed = 0
    for _ in range(400):
        wanted = drawn.choice(queries(seen))
        if (now := rank(candidates, wanted, COSTS).now) and place(now[0], wanted, shares):
            placed += 1
    free = sum(replica.status.pages_total - replica.held_pages for replica in seen.replicas)
    assert placed == free // 4, "until no free page fits a request"
    for candidate in candidates:
        assert candidate.load.taken_pages <= candidate.status.pages_total
        adapters_in_use = candidate.load.elsewhere | {tag(name) for name in candidate.load.adapters}
        assert len(adapters_in_use) <= candidate.status.slots


def place(candidate: Candidate, wanted: PlacementQuery, shares: Shares) -> bool:
    pages = wanted.request.pages(candidate.status.block_tokens)
    occupancy = Occupancy(
        candidate.load, shares, tenant_id="tn_1", weight=1, pages=pages, prompt_tokens=0, adapter=wanted.request.adapter
    )
    occupancy.answered(candidate.load.held_pages + pages, granted_pages=pages)
    return True
