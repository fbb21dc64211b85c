"""Which replica prefetches an adapter, and when a replica has room for it."""

from hypothesis import given
from hypothesis import strategies as st

from core.rendezvous_hash import winner
from data_plane.engine.agent.live_replicas import in_placement_group
from data_plane.engine.agent.prefetch import has_room
from data_plane.engine.agent.prefetch_hints import should_prefetch
from data_plane.engine.residency import EngineResidency
from tests.fixtures.gateway.requests import replica_status

NAME = "ad_1@new"


ids = st.lists(st.integers(0, 50).map(lambda number: f"rep_{number}"), min_size=1, max_size=8, unique=True)


@given(ids, st.lists(st.text("abc", min_size=1, max_size=4), max_size=30))
def test_a_removed_replica_moves_only_its_own_names(replica_ids, names):
    gone = replica_ids[-1]
    for name in names:
        before, after = winner(name, replica_ids), winner(name, replica_ids[:-1])
        assert before in (after, gone)


@given(ids, st.sampled_from([8, 16, 32]), st.lists(st.sampled_from([8, 16, 64]), min_size=8, max_size=8))
def test_exactly_one_replica_of_the_cheapest_fitting_pool_acts(replica_ids, rank_class, ranks):
    live = [replica_status(name, rank_max=rank) for name, rank in zip(replica_ids, ranks, strict=False)]
    acting = [each for each in live if should_prefetch(NAME, rank_class, me=each.id, live=live, resident=frozenset())]
    fitting = [each.rank_max for each in live if each.rank_max >= rank_class]
    assert [each.rank_max for each in acting] == ([min(fitting)] if fitting else [])
    assert all(in_placement_group(rank_class, each, live) for each in acting)


def test_a_replica_with_another_revision_also_prefetches_but_never_above_its_rank():
    live = [replica_status("rep_1"), replica_status("rep_2")]
    for me in ("rep_1", "rep_2"):
        assert should_prefetch(NAME, 16, me=me, live=live, resident=frozenset({"ad_1@old"}))
        assert not should_prefetch(NAME, 32, me=me, live=live, resident=frozenset({"ad_1@old"}))
    acting = [
        me
        for me in ("rep_1", "rep_2")
        if should_prefetch(NAME, 16, me=me, live=live, resident=frozenset({"ad_10@old", NAME}))
    ]
    assert len(acting) == 1
    assert not should_prefetch(NAME, 16, me="rep_3", live=live, resident=frozenset())


def table(memory: tuple[str, ...], **changes) -> EngineResidency:
    fields = {
        "started_at_ms": 1, "version": 1, "slots": (None,), "memory": memory, "staged": (), "pinned": (),
        "failed": (), "slot_evictions": 0, "memory_evictions": 0, "loads": (), **changes,
    }  # fmt: skip
    return EngineResidency(**fields)


def test_a_prefetch_uses_only_free_memory_or_replaces_an_adapter_that_was_not_used_recently():
    idle = {"a"}

    def room(found: EngineResidency, memory_adapters: int = 2) -> bool:
        return has_room(found, memory_adapters=memory_adapters, was_idle=lambda name: name in idle)

    assert room(table(("b",)))
    assert room(table(("a", "b")))
    assert not room(table(("b", "a")))  # the least recently used is b, and b is not idle
    assert not room(table(("a", "b"), pinned=("a",)))
    assert not room(table(("a", "b"), slots=("a",)))
    assert not room(table(("b",), staged=("c",)))
