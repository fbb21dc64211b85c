"""Placement: only replicas that may serve a request, and of them the one on which it costs least."""

from hypothesis import given
from hypothesis import strategies as st

from core.contracts import ReplicaStatus, Residency
from data_plane.gateway.placement import Candidate, Resident, Wish, choose

DIGEST = "a" * 64
NAME = f"ad_1@{DIGEST}"
ADAPTER = Wish(base_model="m", engine_name=NAME, rank=8)
BASE = Wish(base_model="m", engine_name="m")
TIERS = {
    "slot": Resident(slots=frozenset({NAME}), memory=frozenset({NAME}), disk=frozenset({DIGEST})),
    "memory": Resident(memory=frozenset({NAME}), disk=frozenset({DIGEST})),
    "disk": Resident(disk=frozenset({DIGEST})),
    "store": Resident(slots=frozenset({"ad_2@" + DIGEST})),
}


def status(replica_id: str, **changes) -> ReplicaStatus:
    fields = {
        "id": replica_id, "url": "http://x", "base_model": "m", "state": "ready", "boot_id": "b", "block_tokens": 16,
        "pages_total": 100, "pages_free": 100, "slots": 4, "running_requests": 0, "waiting_requests": 0,
        "heartbeat_ms": 0, **changes,
    }  # fmt: skip
    return ReplicaStatus(**fields)


candidates = st.lists(
    st.builds(
        lambda number, state, base, total, free, tier, rank_max: Candidate(
            status(f"rep_{number}", state=state, base_model=base, pages_total=total, rank_max=rank_max),
            min(free, total),
            TIERS[tier],
        ),
        st.integers(0, 9),
        st.sampled_from(["ready", "ready", "ready", "draining", "unhealthy", "starting"]),
        st.sampled_from(["m", "m", "other"]),
        st.integers(1, 100),
        st.integers(0, 100),
        st.sampled_from(list(TIERS)),
        st.sampled_from([4, 8, 16, 64]),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.status.id,
)
tried_ids = st.frozensets(st.integers(0, 9).map(lambda n: f"rep_{n}"), max_size=3)


@given(candidates=candidates, pages=st.integers(1, 100), tried=tried_ids)
def test_an_adapter_goes_to_room_then_to_the_cheapest_class_then_to_the_fastest_tier(candidates, pages, tried):
    chosen = choose(candidates, ADAPTER, pages=pages, tried=tried)
    able = {
        c.status.id: c
        for c in candidates
        if c.status.state == "ready" and c.status.base_model == "m" and c.status.pages_total >= pages
        and c.status.rank_max >= 8 and c.status.id not in tried
    }  # fmt: skip
    assert {s.id for s in chosen} == set(able)
    if not able:
        return
    best = able[chosen[0].id]
    rivals = [c for c in able.values() if c.free_pages >= pages]
    if rivals:
        assert best.free_pages >= pages
    else:
        rivals = list(able.values())
    cheapest = min(c.status.rank_max for c in rivals)
    assert best.status.rank_max == cheapest
    rivals = [c for c in rivals if c.status.rank_max == cheapest]
    fastest = min(list(TIERS).index(c.resident.tier(NAME)) for c in rivals)
    assert list(TIERS).index(best.resident.tier(NAME)) == fastest
    rivals = [c for c in rivals if c.resident.tier(NAME) == best.resident.tier(NAME)]
    assert best.free_pages == max(c.free_pages for c in rivals)


@given(candidates=candidates, pages=st.integers(1, 100), tried=tried_ids)
def test_a_base_model_is_everywhere_and_has_no_rank(candidates, pages, tried):
    chosen = choose(candidates, BASE, pages=pages, tried=tried)
    able = {
        c.status.id: c.free_pages
        for c in candidates
        if c.status.state == "ready" and c.status.base_model == "m" and c.status.pages_total >= pages
        and c.status.id not in tried
    }  # fmt: skip
    assert {s.id for s in chosen} == set(able)
    assert not chosen or able[chosen[0].id] == max(able.values())


def test_a_published_residency_says_the_fastest_tier():
    residency = Residency(
        replica_id="rep_1", boot_id="b", version=1, slots=("ad_1@" + "1" * 64, None), memory=("ad_2@" + "2" * 64,),
        disk=("1" * 64, "2" * 64, "3" * 64),
    )  # fmt: skip
    resident = Resident.of(residency)
    tiers = [resident.tier(f"ad_{number}@" + str(number) * 64) for number in (1, 2, 3, 4)]
    assert tiers == ["slot", "memory", "disk", "store"]
