"""Placement: only replicas that can serve a request, and of those the one with the earliest first token."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from core.contracts.replicas import ReplicaStatus, Residency
from data_plane.gateway.admission.queue_scan import PoolCapacity
from data_plane.gateway.scheduling.placement import (
    Candidate,
    PlacementCosts,
    PlacementQuery,
    Ranking,
    Resident,
    pages_max,
    rank,
)
from data_plane.gateway.scheduling.replica_load import ReplicaLoad, tag
from tests.fixtures.gateway.requests import inference_request, replica_status

DIGEST = "a" * 64
NAME = f"ad_1@{DIGEST}"
OTHERS = [f"ad_{number}@{number:064x}" for number in range(10, 30)]
COSTS = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.05
)  # fmt: skip
TIERS = {
    "slot": Resident(slots=frozenset({NAME}), memory=frozenset({NAME}), disk=frozenset({DIGEST})),
    "memory": Resident(memory=frozenset({NAME}), disk=frozenset({DIGEST})),
    "disk": Resident(disk=frozenset({DIGEST})),
    "store": Resident(slots=frozenset({OTHERS[0]})),
}


def query(engine_name: str = NAME, *, headroom=True, overdue=False, failed_by=frozenset(), **changes) -> PlacementQuery:
    """A request of ``sequence_tokens`` with ``prompt_tokens`` among them, as placement sees it."""
    fields = {"sequences": 1, "sequence_tokens": 160, "prompt_tokens": 100, **changes}
    fields["max_tokens"] = fields.pop("sequence_tokens") - fields["prompt_tokens"]
    adapter = {} if engine_name == "m" else {"adapter": engine_name, "rank": 8}
    return PlacementQuery(inference_request(**{**adapter, **fields}), headroom, overdue, failed_by)


def status(replica_id: str, **changes) -> ReplicaStatus:
    return replica_status(replica_id, **{"pages_total": 100, "slots": 4, **changes})


def load(held: int = 0, adapters: dict[str, int] | None = None, **fields: int) -> ReplicaLoad:
    made = ReplicaLoad(held)
    for name, requests in (adapters or {}).items():
        for _ in range(requests):
            made.begin(name)
    made.requests = fields.get("requests", sum((adapters or {}).values()))
    made.prompt_tokens = fields.get("prompt_tokens", 0)
    return made


def candidate(replica_id: str, tier: str = "store", held: int = 0, adapters=None, *, changes=None, **fields: int):
    return Candidate(status(replica_id, **(changes or {})), load(held, adapters, **fields), TIERS[tier])


def first(candidates, wanted: PlacementQuery, **options) -> str:
    return rank(candidates, wanted, COSTS, **options).now[0].status.id


candidates_strategy = st.lists(
    st.builds(
        lambda number, state, base, total, held, tier, rank_max, block, busy: Candidate(
            status(
                f"rep_{number}", state=state, base_model=base, pages_total=total, rank_max=rank_max, block_tokens=block
            ),
            load(held, dict.fromkeys(busy, 1)),
            TIERS[tier],
        ),
        st.integers(0, 9),
        st.sampled_from(["ready", "ready", "ready", "draining", "unhealthy", "starting"]),
        st.sampled_from(["m", "m", "other"]),
        st.integers(1, 100),
        st.integers(0, 100),
        st.sampled_from(list(TIERS)),
        st.sampled_from([4, 8, 16, 64]),
        st.sampled_from([16, 32, 128]),
        st.lists(st.sampled_from([NAME, *OTHERS]), max_size=6, unique=True),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.status.id,
)
queries = st.builds(
    lambda adapter, tokens, headroom, overdue, affinity: query(
        NAME if adapter else "m", sequence_tokens=tokens, headroom=headroom, overdue=overdue, affinity=affinity
    ),
    st.booleans(),
    st.integers(1, 1600),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "session"]),
)
tried_ids = st.frozensets(st.integers(0, 9).map(lambda n: f"rep_{n}"), max_size=3)


@given(candidates=candidates_strategy, wanted=queries, tried=tried_ids)
def test_a_request_goes_only_where_it_may_run_and_has_room(candidates, wanted, tried):
    ranking = rank(candidates, wanted, COSTS, tried=tried)
    able = {
        c.status.id
        for c in candidates
        if c.status.state == "ready" and c.status.base_model == "m" and c.status.id not in tried
        and c.status.pages_total >= wanted.request.pages(c.status.block_tokens)
        and c.status.rank_max >= wanted.request.rank
    }  # fmt: skip
    assert {c.status.id for c in ranking.able} == able
    assert len(ranking.able) == len(able)
    for c in ranking.now:
        assert c.load.held_pages + wanted.request.pages(c.status.block_tokens) <= pages_max(c, wanted, COSTS)
        if wanted.request.adapter and not wanted.overdue:
            assert NAME in c.load.adapters or len(c.load.adapters) < c.status.slots
    if wanted.overdue:
        assert not ranking.crowded
    classes = [c.status.rank_max for c in ranking.now]
    if wanted.request.adapter and not wanted.overdue:
        assert classes == sorted(classes)


def with_sequences(wanted: PlacementQuery, sequences: int) -> PlacementQuery:
    prompts = wanted.request.prompts * sequences
    return structs.replace(wanted, request=structs.replace(wanted.request, prompts=prompts))


@given(candidates=candidates_strategy, wanted=queries, sequences=st.integers(1, 4), headroom_share=st.floats(0, 0.5))
def test_pool_capacity_refuses_only_if_ranking_finds_no_room(candidates, wanted, sequences, headroom_share):
    costs, wanted = replace(COSTS, headroom_share=headroom_share), with_sequences(wanted, sequences)
    capacity, ranking = PoolCapacity(candidates, costs), rank(candidates, wanted, costs)
    if capacity.lacks_pages(wanted):
        assert not ranking.now
    if capacity.lacks_slot(wanted):
        assert ranking.able == ranking.crowded


def test_pool_capacity_notices_exhausted_pages_or_slots():
    full = [candidate("rep_1", held=95), candidate("rep_2", held=99, adapters=dict.fromkeys(OTHERS[:4], 1))]
    assert PoolCapacity(full, COSTS).lacks_pages(query())
    assert PoolCapacity(full, COSTS).lacks_pages(query(sequence_tokens=80, headroom=False))
    assert not PoolCapacity(full, COSTS).lacks_pages(query(sequence_tokens=80))
    assert PoolCapacity(full[1:], COSTS).lacks_slot(query())
    assert not PoolCapacity(full[1:], COSTS).lacks_slot(query(OTHERS[0]))
    assert not PoolCapacity(full, COSTS).lacks_slot(query())


@given(candidates=candidates_strategy, wanted=queries, seed=st.randoms())
def test_the_same_snapshot_in_any_order_gives_the_same_answer(candidates, wanted, seed):
    shuffled = list(candidates)
    seed.shuffle(shuffled)
    assert rank(candidates, wanted, COSTS) == rank(shuffled, wanted, COSTS)


def test_the_faster_tier_wins_between_equal_replicas():
    for better, worse in (("slot", "memory"), ("memory", "disk"), ("disk", "store")):
        pair = [candidate("rep_1", worse), candidate("rep_2", better)]
        assert first(pair, query()) == "rep_2"
        assert first([candidate("rep_1", better), candidate("rep_2", worse)], query()) == "rep_1"


def test_the_cheapest_class_with_room_comes_before_the_fastest_tier():
    small = candidate("rep_small", "store", changes={"rank_max": 8})
    large = candidate("rep_large", "slot", changes={"rank_max": 64})
    assert first([large, small], query()) == "rep_small"
    full = candidate("rep_small", "store", held=95, changes={"rank_max": 8})
    assert first([large, full], query()) == "rep_large"


def of_pools(wanted: PlacementQuery, *, closed: str = "", own: str = "") -> PlacementQuery:
    pools = {"closed_pools": frozenset({closed} - {""}), "own_pools": frozenset({own} - {""})}
    return structs.replace(wanted, request=structs.replace(wanted.request, **pools))


def test_a_pool_that_does_not_serve_a_request_gets_none_and_the_tenants_own_comes_first():
    shared = candidate("rep_1", "slot", changes={"pool": "shared"})
    own = candidate("rep_2", requests=9, changes={"pool": "own", "rank_max": 64})
    assert first([shared, own], query()) == "rep_1"
    assert first([shared, own], of_pools(query(), own="own")) == "rep_2"
    full = candidate("rep_2", held=95, changes={"pool": "own"})
    assert first([shared, full], of_pools(query(), own="own")) == "rep_1"
    assert rank([own], of_pools(query(), closed="own"), COSTS).able == []


def test_batch_leaves_what_others_of_its_pool_arrive_with():
    half = structs.replace(query("m", headroom=False), left_free={"chat": 0.5})
    assert pages_max(candidate("rep_1", changes={"pool": "chat"}), half, COSTS) == 50
    assert pages_max(candidate("rep_1", changes={"pool": "nightly"}), half, COSTS) == 95


@pytest.mark.parametrize(
    ("pages", "batch_requests", "allowed"),
    [(50, 0, 50), (51, 0, 95), (95, 0, 95), (51, 1, 50), (95, 1, 50), (96, 0, 100), (96, 1, 100)],
)
def test_one_batch_request_at_a_time_may_be_larger_than_what_is_left(pages, batch_requests, allowed):
    """Only one that could never run beside the headroom may take that as well."""
    large = structs.replace(query("m", headroom=False, sequence_tokens=pages * 16), left_free={"": 0.5})
    replica = candidate("rep_1")
    replica.load.batch_requests = batch_requests
    assert pages_max(replica, large, COSTS) == allowed


@pytest.mark.parametrize(
    ("running", "batch_requests", "alone", "beside_others"),
    [(7, 7, True, True), (8, 1, True, False), (27, 1, True, False), (28, 28, False, False), (28, 0, True, True)],
)
def test_batch_leaves_sequences_free_and_others_tokens_fast_but_one_always_runs(
    running, batch_requests, alone, beside_others
):
    replica = candidate("rep_1", changes={"sequences": 32, "batch_requests_max": 8, "running_requests": running})
    replica.load.batch_requests = batch_requests
    for left_free, has_room in (({}, alone), ({"": 0.0}, beside_others)):
        request = inference_request(service_class="batch")
        batch = PlacementQuery(request, headroom=False, left_free=left_free)
        assert bool(rank([replica], batch, COSTS).now) is has_room
    assert rank([replica], query("m"), COSTS).now, "others have room"


def test_a_base_model_goes_where_the_fewest_requests_run():
    assert first([candidate("rep_1", requests=9), candidate("rep_2", requests=3)], query("m")) == "rep_2"
    beating = candidate("rep_2", changes={"running_requests": 20})  # other gateways' requests
    assert first([candidate("rep_1", requests=9), beating], query("m")) == "rep_1"


def test_queued_prefill_counts():
    assert first([candidate("rep_1", prompt_tokens=50_000), candidate("rep_2", requests=3)], query("m")) == "rep_2"


def test_pages_are_counted_in_the_blocks_of_each_engine():
    wanted = query("m", sequences=3, sequence_tokens=130)
    assert (wanted.request.pages(16), wanted.request.pages(128)) == (27, 48)
    fine = candidate("rep_fine", held=70)
    coarse = candidate("rep_coarse", held=70, changes={"block_tokens": 128})
    ranking = rank([fine, coarse], wanted, COSTS)
    assert [c.status.id for c in ranking.now] == ["rep_fine"]
    assert [c.status.id for c in ranking.full] == ["rep_coarse"]


def test_one_adapter_more_than_slots_goes_elsewhere_or_waits_until_it_is_overdue():
    crowd = dict.fromkeys(OTHERS[:4], 1)
    crowded, other = candidate("rep_1", "slot", adapters=crowd), candidate("rep_2", "store")
    assert first([crowded, other], query()) == "rep_2"
    assert rank([crowded], query(), COSTS).now == []
    assert rank([crowded], query(), COSTS).crowded == [crowded]
    assert first([crowded], query(overdue=True)) == "rep_1"
    assert first([crowded], query("m")) == "rep_1"
    own = candidate("rep_3", "slot", adapters={**dict.fromkeys(OTHERS[:3], 1), NAME: 1})
    assert first([own], query()) == "rep_3"


def test_a_hot_adapter_spreads_and_a_cold_one_stays_on_its_replica():
    def between(uses: int) -> str:
        home = candidate("rep_home", "slot", held=uses, adapters={NAME: uses})
        return first([home, candidate("rep_idle", "store")], query())

    assert between(1) == between(4) == "rep_home"
    assert between(60) == "rep_idle"


def test_a_request_waits_for_an_adapter_that_is_being_loaded():
    coming = candidate("rep_1", "store", adapters={NAME: 1})
    assert first([coming, candidate("rep_0", "store")], query()) == "rep_1"


def test_a_replica_that_failed_to_load_the_adapter_comes_after_every_other():
    failed = candidate("rep_failed", "slot", adapters={NAME: 1})
    failing = query(failed_by=frozenset({"rep_failed"}))
    for other in (candidate("rep_2", "store", requests=90), candidate("rep_2", changes={"rank_max": 64})):
        assert first([failed, other], query()) == "rep_failed"
        assert first([failed, other], failing) == "rep_2"
    full = candidate("rep_2", held=99)
    assert rank([failed, full], failing, COSTS) == Ranking([], [full], [])  # it waits for that replica
    crowded = candidate("rep_2", adapters=dict.fromkeys(OTHERS[:4], 1))
    assert rank([failed, crowded], failing, COSTS) == Ranking([], [], [crowded])


def test_a_failed_replica_is_tried_again_if_no_other_can_serve():
    failed = candidate("rep_failed")
    failing = query(failed_by=frozenset({"rep_failed", "rep_2"}))
    for others in (
        [], [candidate("rep_2", "store", requests=9)], [candidate("rep_3", changes={"state": "draining"})],
        [candidate("rep_3", changes={"rank_max": 4})], [candidate("rep_3", changes={"pages_total": 9})],
    ):  # fmt: skip
        assert first([failed, *others], failing) == "rep_failed"
    assert first([failed, candidate("rep_3")], failing, tried={"rep_3"}) == "rep_failed"


@given(candidates=candidates_strategy, wanted=queries, failed_by=tried_ids)
def test_failures_exclude_replicas_only_while_others_remain(candidates, wanted, failed_by):
    able = rank(candidates, wanted, COSTS).able
    left = rank(candidates, structs.replace(wanted, failed_by=failed_by), COSTS).able
    others = {c.status.id for c in able} - failed_by
    assert {c.status.id for c in left} == (others or {c.status.id for c in able})


def test_loading_into_a_slot_avoids_replicas_with_requests_that_it_would_delay():
    busy = candidate("rep_1", "memory", adapters={OTHERS[0]: 30})
    assert first([busy, candidate("rep_2", "disk")], query()) == "rep_2"


def test_a_session_returns_to_its_replica_unless_it_is_much_busier():
    idle = [candidate(f"rep_{number}") for number in range(8)]
    session = query("m", prompt_tokens=4000, affinity="tn_1\0session")
    home = first(idle, session)
    assert first(list(reversed(idle)), session) == home
    near = [candidate(c.status.id, requests=20 if c.status.id == home else 0) for c in idle]
    assert first(near, session) == home
    far = [candidate(c.status.id, requests=150 if c.status.id == home else 0) for c in idle]
    second = first(far, session)
    assert second != home
    gone = [c for c in idle if c.status.id != home]
    assert first(gone, session) == second  # the same second choice as when its own replica is full


def test_sessions_and_cold_adapters_are_distributed_evenly():
    idle = [candidate(f"rep_{number}") for number in range(8)]
    for draw in (lambda n: query("m", affinity=f"tn_{n}\0s"), lambda n: query(f"ad_{n}@{n:064x}")):
        homes = [first(idle, draw(number)) for number in range(800)]
        counts = [homes.count(c.status.id) for c in idle]
        assert sum(counts) == 800
        assert min(counts) >= 60
        assert max(counts) <= 140


def test_a_tenant_at_its_fair_share_leaves_the_last_pages_to_others():
    nearly_full = candidate("rep_1", held=86)
    assert rank([nearly_full], query("m", headroom=False), COSTS).full == [nearly_full]
    assert first([nearly_full], query("m", headroom=True)) == "rep_1"
    whole = query("m", sequence_tokens=1600, headroom=False)
    assert first([candidate("rep_1")], whole) == "rep_1"  # otherwise it could never run


def test_a_published_residency_names_the_fastest_tier():
    residency = Residency(
        replica_id="rep_1", boot_id="b", version=1, slots=("ad_1@" + "1" * 64, None), memory=("ad_2@" + "2" * 64,),
        disk=("1" * 64, "2" * 64, "3" * 64),
    )  # fmt: skip
    resident = Resident.of(residency)
    tiers = [resident.tier(f"ad_{number}@" + str(number) * 64) for number in (1, 2, 3, 4)]
    assert tiers == ["slot", "memory", "disk", "store"]


def test_a_tag_is_computed_once_for_a_request_however_many_replicas_there_are(monkeypatch):
    crowded = [candidate(f"rep_{number}", adapters=dict.fromkeys(OTHERS[:4], 1)) for number in range(50)]
    for each in crowded:
        each.load.elsewhere = frozenset(each.load.tags)
    reckoned = []

    def counted(name: str) -> str:
        reckoned.append(name)
        return tag(name)

    for module in ("placement", "replica_load"):
        monkeypatch.setattr(f"data_plane.gateway.scheduling.{module}.tag", counted)
    ranking = rank(crowded, query(), COSTS)
    assert len(ranking.crowded) == 50
    assert reckoned == [NAME]
