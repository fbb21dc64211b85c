"""A shortlist has what is worth ranking, however many replicas there are, and the index stays in step with them."""

from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, PlacementQuery, Resident, rank
from data_plane.gateway.scheduling.replica_load import ReplicaLoad
from data_plane.gateway.scheduling.shortlist import RANKED_MAX, CandidateIndex, CandidatePool
from tests.fixtures.gateway.requests import inference_request, replica_status

DIGEST = "a" * 64
NAME = f"ad_1@{DIGEST}"
MANY = 10 * RANKED_MAX
COSTS = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0
)  # fmt: skip


def candidate(number: int, *, held: int = 0, resident: Resident | None = None, **status: object) -> Candidate:
    name = f"rep_{number}"
    return Candidate(
        replica_status(name, **{"pages_total": 100, "slots": 4, **status}), ReplicaLoad(held), resident or Resident()
    )


def pool_of(*candidates: Candidate) -> CandidatePool:
    pool = CandidatePool()
    for each in candidates:
        pool.put(each)
    pool.sort_by_room()
    return pool


def names(candidates) -> list[str]:
    return [each.status.id for each in candidates]


def request(**changes):
    return inference_request(**{"adapter": NAME, "rank": 8, "prompt_tokens": 10, "max_tokens": 10, **changes})


def test_of_few_replicas_all_are_ranked():
    few = pool_of(*(candidate(number) for number in range(RANKED_MAX)))
    found, homes = few.shortlist(request())
    assert (len(found), homes) == (RANKED_MAX, None)
    assert len(few.roomy()) == RANKED_MAX


def test_of_many_replicas_at_most_as_many_are_ranked():
    many = pool_of(*(candidate(number) for number in range(MANY)))
    found, homes = many.shortlist(request(affinity="session"))
    assert len(set(names(found))) == len(found) == RANKED_MAX
    assert homes is not None
    assert homes.of_adapter | homes.of_session <= set(names(found))


def test_replicas_that_hold_the_adapter_are_listed_wherever_they_hold_it():
    holders = {
        1: Resident(slots=frozenset({NAME})),
        2: Resident(memory=frozenset({NAME})),
        3: Resident(disk=frozenset({DIGEST})),
    }
    full = [candidate(number, held=100, resident=resident) for number, resident in holders.items()]
    many = pool_of(*full, *(candidate(number) for number in range(4, MANY)))
    assert set(names(full)) <= set(names(many.shortlist(request())[0]))


def test_requests_in_a_row_see_different_replicas_with_room():
    many = pool_of(*(candidate(number) for number in range(MANY)))
    seen = {name for _ in range(20) for name in names(many.shortlist(request(adapter="", rank=0))[0])}
    assert len(seen) > 2 * RANKED_MAX


def test_a_cold_adapter_and_a_session_have_the_same_homes_for_every_request():
    many = pool_of(*(candidate(number) for number in range(MANY)))
    lists = [many.shortlist(request(affinity="session")) for _ in range(5)]
    assert len({(each.homes.of_adapter, each.homes.of_session) for each in lists if each.homes}) == 1
    firsts = {
        rank(found, PlacementQuery(request(affinity="session")), COSTS, homes=homes).now[0].status.id
        for found, homes in lists
    }
    assert len(firsts) == 1


def test_when_one_replica_goes_most_homes_stay():
    many = pool_of(*(candidate(number) for number in range(MANY)))
    adapters = [f"ad_{number}@{number:064x}" for number in range(200)]

    def homes():
        return {name: many.shortlist(request(adapter=name)).homes.of_adapter for name in adapters}

    before = homes()
    many.remove(candidate(7))
    after = homes()
    assert sum(before[name] != after[name] for name in adapters) < 20
    assert not any("rep_7" in each for each in after.values())


def test_an_adapter_of_large_rank_sees_replicas_of_a_class_that_fits_beside_many_that_do_not():
    large = [candidate(number, held=99, rank_max=64) for number in range(3)]
    many = pool_of(*large, *(candidate(number) for number in range(3, MANY)))
    found, homes = many.shortlist(request(rank=32))
    assert (set(names(found)), homes) == ({"rep_0", "rep_1", "rep_2"}, None)
    found, homes = many.shortlist(request(rank=8))
    assert {"rep_0", "rep_1", "rep_2"} <= homes.of_adapter, "each of a class that is listed whole may be a home"


def test_what_a_request_has_left_is_looked_at_before_the_next_look_at_all():
    held = [candidate(number, held=50) for number in range(MANY)]
    many = pool_of(*held, candidate(MANY, held=100))
    assert f"rep_{MANY}" not in names(many.roomy())
    many.free(candidate(MANY).status)
    assert names(many.roomy())[0] == f"rep_{MANY}"
    many.sort_by_room()
    assert f"rep_{MANY}" not in names(many.roomy())


def test_room_on_a_replica_that_takes_no_requests_is_none():
    many = pool_of(*(candidate(number, held=50) for number in range(MANY)), candidate(MANY, state="draining"))
    assert f"rep_{MANY}" not in names(many.roomy())


CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["slots", "memory", "disk", "nothing", "gone"])), max_size=40
)


@given(CHANGES)
def test_the_index_holds_exactly_what_was_put_last(changes):
    index, expected = CandidateIndex(), dict[str, Candidate]()
    resident = {
        "slots": Resident(slots=frozenset({NAME}), memory=frozenset({NAME})),
        "memory": Resident(memory=frozenset({NAME})),
        "disk": Resident(disk=frozenset({DIGEST})),
        "nothing": Resident(),
    }
    for number, change in changes:
        name = f"rep_{number}"
        if change == "gone":
            if expected.pop(name, None):
                index.remove(name)
        else:
            expected[name] = candidate(number, resident=resident[change])
            index.put(expected[name])
    assert index.candidates == expected
    built = CandidateIndex()
    for each in expected.values():
        built.put(each)
    assert vars(index)["_ring"] == vars(built)["_ring"]
    assert {name: set(held) for name, held in vars(index)["_holders"].items()} == {
        name: set(held) for name, held in vars(built)["_holders"].items()
    }
