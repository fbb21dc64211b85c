"""What the planner promises for any load: within bounds, monotone, without flapping, and never under the target."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from control_plane.pools.planner import PoolGoals, PoolSignals, asks_to_grow, asks_to_stay, next_target

GOALS = PoolGoals(load=0.9, load_after=0.8, ttft_ms=2000, itl_ms=100)
LOADS = ("held_pages", "waiting_pages", "waiting_requests", "adapters", "input_tokens_per_s", "output_tokens_per_s")
signals = st.builds(
    PoolSignals,
    ready=st.integers(0, 20),
    pages_per_replica=st.integers(1, 5000),
    slots_per_replica=st.integers(1, 64),
    input_capacity=st.none() | st.floats(1, 1000),
    output_capacity=st.none() | st.floats(1, 1000),
    ttft_p95_ms=st.none() | st.integers(0, 10_000),
    itl_p95_ms=st.none() | st.integers(0, 1000),
    **dict.fromkeys(LOADS, st.integers(0, 20_000)),
)
bounds = st.tuples(st.integers(0, 10), st.integers(0, 10)).map(sorted)


def largest(signals: PoolSignals, goals: PoolGoals = GOALS) -> int:
    return max(asks_to_grow(signals, goals).values())


def test_each_signal_asks_for_as_many_replicas_as_its_load_needs():
    asks = asks_to_grow(
        PoolSignals(
            ready=4, pages_per_replica=100, slots_per_replica=8, held_pages=200, waiting_pages=160, waiting_requests=9,
            adapters=17, input_tokens_per_s=900, input_capacity=200, output_tokens_per_s=100, output_capacity=50,
            ttft_p95_ms=3000, itl_p95_ms=90,
        ),
        GOALS,
    )  # fmt: skip
    assert asks == {"requests": 1, "pages": 4, "prefill": 5, "decode": 3, "slots": 3, "latency": 6}


def test_a_first_request_asks_for_one_replica_of_unknown_size():
    assert largest(PoolSignals(ready=0, waiting_requests=9, waiting_pages=500)) == 1


def test_spare_replicas_stand_beside_a_load_and_not_beside_nothing():
    spare = PoolGoals(load=0.9, load_after=0.8, spare=2)
    busy = PoolSignals(ready=1, pages_per_replica=100, held_pages=150)
    assert asks_to_grow(busy, spare)["redundancy"] == 4
    assert largest(PoolSignals(ready=3, pages_per_replica=100), spare) == 0


@given(signals, st.integers(0, 20), bounds, st.none() | st.integers(0, 50))
def test_a_target_is_within_its_bounds(found, current, limits, stay):
    least, most = limits
    assert least <= next_target(current, largest(found), stay, least=least, most=most) <= most


@given(signals, st.sampled_from(LOADS), st.integers(0, 5000))
def test_more_load_never_asks_for_fewer_replicas(found, name, more):
    heavier = msgspec.structs.replace(found, **{name: getattr(found, name) + more})
    assert largest(heavier) >= largest(found)
    assert max(asks_to_stay(heavier, GOALS).values()) >= max(asks_to_stay(found, GOALS).values())


@given(signals, st.integers(0, 20), bounds)
def test_a_load_that_stays_changes_a_pool_at_most_once(found, current, limits):
    least, most = limits
    stay = max(asks_to_stay(found, GOALS).values())
    first = next_target(current, largest(found), stay, least=least, most=most)
    assert next_target(first, largest(found), stay, least=least, most=most) == first


@given(signals)
def test_what_a_pool_shrinks_to_stays_under_its_targets(found):
    stay = max(asks_to_stay(found, GOALS).values())
    assert stay >= largest(found)
    assert found.held_pages + found.waiting_pages <= stay * found.pages_per_replica * GOALS.load_after + 1e-6
    if found.output_capacity:
        assert found.output_tokens_per_s <= stay * found.output_capacity * GOALS.load_after * (1 + 1e-9)


@given(st.integers(1, 20), st.integers(2001, 100_000))
def test_replicas_that_start_are_not_asked_for_twice(ready, ttft_ms):
    asked = largest(PoolSignals(ready=ready, ttft_p95_ms=ttft_ms))
    assert ready < asked <= 2 * ready
    assert next_target(asked, asked, None, least=0, most=100) == asked, "the others start, and the latency is as before"


@given(signals, st.integers(0, 20))
def test_a_pool_does_not_shrink_before_it_was_seen_for_long_enough(found, current):
    assert next_target(current, largest(found), None, least=0, most=math.inf) >= current
