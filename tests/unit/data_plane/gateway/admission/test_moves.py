"""Moves of a request's hold: a refusal teaches what is held on a replica, so that no move is tried twice in vain."""

import asyncio
from types import SimpleNamespace

import pytest

from data_plane.gateway.admission.assignment import assign
from data_plane.gateway.admission.moves import Moves, Placement
from data_plane.gateway.quota.reservation import Moved
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, PlacementQuery, rank
from data_plane.gateway.scheduling.replica_load import ReplicaLoad, Shares
from data_plane.gateway.settlement.settler import Hold
from tests.fixtures.gateway.requests import inference_request, replica_status

COSTS = PlacementCosts(store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0)
REQUEST = inference_request(service_class="batch")  # two pages
QUERY = PlacementQuery(REQUEST)


class Stage:
    """A replica of ten pages, of which other gateways hold some that this one does not know of."""

    def __init__(self, held: int) -> None:
        self.held, self.moves_asked = held, 0
        self.shares = Shares()
        self.candidate = Candidate(replica_status(), ReplicaLoad())
        self.hold = Hold("req_1", "tn_1", "rep_old", 2)
        old = assign(Candidate(replica_status("rep_old"), ReplicaLoad()), QUERY, self.shares, COSTS)
        self.placement = Placement(replica_status("rep_old"), self.hold, None, old)
        self.moves = Moves(None, self, self, deadline_s=1)

    def ranking(self, *_args: object, **_query: object):
        return rank([self.candidate], QUERY, COSTS)

    def assign(self, _request: object, candidate: Candidate):
        return assign(candidate, QUERY, self.shares, COSTS)

    async def wait(self, entry: SimpleNamespace):
        """As the wait queue: a turn comes where this process sees room."""
        while not self.ranking().now:
            entry.waited += 1
            await asyncio.sleep(0)
            if entry.waited == 3:
                self.held = self.candidate.load.held_pages = 4
        return self.assign(None, self.candidate)

    def put_back(self, _entry: object, assignment) -> None:
        assignment.cancel()

    async def move(self, _request_id: str, pages: int, *, replica_pages_max: int, **_ids: str) -> Moved:
        self.moves_asked += 1
        assert self.moves_asked < 9, "a loop without a pause"
        fitted = self.held + pages <= replica_pages_max
        self.held += pages if fitted else 0
        return Moved(fitted, self.held)


@pytest.mark.parametrize(("held", "moved"), [(8, True), (9, False)])
async def test_a_retry_moves_where_its_pages_fit_and_knows_afterwards_what_is_held(held, moved):
    stage = Stage(held)
    placement = await stage.moves.to_another(REQUEST, stage.placement, frozenset({"rep_old"}))
    assert (placement is not None) is moved
    load = stage.candidate.load
    assert (load.held_pages, load.pending_pages, load.requests) == (10 if moved else 9, 0, int(moved))
    assert stage.hold.replica_id == ("rep_1" if moved else "rep_old")


async def test_a_request_that_waits_again_asks_once_for_room_that_another_gateway_took():
    stage, entry = Stage(held=9), SimpleNamespace(waited=0)
    placement = await stage.moves.place_again(stage.placement, entry, lambda _on_gone: None)
    assert (placement.replica.id, stage.moves_asked, entry.waited) == ("rep_1", 2, 3)
    assert stage.candidate.load.taken_pages == 6
