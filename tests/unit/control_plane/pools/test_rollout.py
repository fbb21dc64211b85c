"""A rollout replaces one replica at a time, and never has fewer that serve than the pool should have."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.pools.rollout import next_counts


def test_a_new_pool_gets_all_its_replicas():
    assert next_counts(3, 1, {}, {}) == {1: 3}
    assert next_counts(0, 1, {}, {}) == {}


def test_a_rollout_starts_one_new_replica_and_gives_up_an_old_one_for_each_that_is_ready():
    assert next_counts(3, 2, {1: 3}, {1: 3}) == {2: 1, 1: 3}
    assert next_counts(3, 2, {1: 3, 2: 1}, {1: 3, 2: 1}) == {2: 2, 1: 2}
    assert next_counts(3, 2, {1: 2, 2: 2}, {1: 2, 2: 2}) == {2: 3, 1: 1}
    assert next_counts(3, 2, {1: 1, 2: 3}, {1: 1, 2: 3}) == {2: 3}


def test_a_new_replica_that_is_never_ready_keeps_all_old_ones():
    counts = {1: 3}
    for _ in range(10):
        counts = next_counts(3, 2, counts, {1: 3})
    assert counts == {2: 1, 1: 3}


def test_going_back_in_the_middle_names_the_old_revision():
    assert next_counts(3, 1, {1: 2, 2: 2}, {1: 2, 2: 1}) == {1: 3, 2: 1}
    assert next_counts(3, 1, {1: 3, 2: 1}, {1: 3, 2: 1}) == {1: 3}


def test_a_third_revision_replaces_the_oldest_first():
    assert next_counts(3, 3, {1: 2, 2: 1}, {1: 2, 2: 1, 3: 1}) == {3: 2, 2: 1, 1: 1}


def test_replicas_that_are_not_ready_for_a_moment_are_not_given_up():
    assert next_counts(3, 2, {1: 1, 2: 3}, {}) == {2: 3, 1: 1}
    assert next_counts(3, 2, {1: 2, 2: 2}, {2: 1}) == {2: 2, 1: 2}


@given(
    target=st.integers(1, 6), starts=st.integers(1, 3), fails=st.booleans(),
    moves=st.lists(st.integers(1, 3), max_size=6),
)  # fmt: skip
def test_what_serves_never_falls_below_the_target_and_every_rollout_ends(target, starts, fails, moves):
    """Replicas become ready a round after they are wanted, except those of a revision that fails."""
    counts = ready = {starts: target}
    broken = {3} - {starts} if fails else set()
    for in_force in (*moves, starts):
        for _ in range(3 * target + 3):
            counts = next_counts(target, in_force, counts, ready)
            assert sum(counts.values()) <= target + 1
            kept = {number: min(count, ready.get(number, 0)) for number, count in counts.items()}
            assert sum(kept.values()) >= target
            ready = {number: 0 if number in broken else count for number, count in counts.items()}
    assert counts == ready == {starts: target}
