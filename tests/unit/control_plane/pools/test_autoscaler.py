"""A pool's target over time, in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.pools.autoscaler import PoolBounds, PoolScaler, StartTimes
from control_plane.pools.planner import PoolSignals
from control_plane.pools.settings import FleetSettings
from tests.fixtures.gateway.requests import replica_status

SETTINGS = FleetSettings(fleet_shrink_after_s=60, fleet_idle_s=300)
ANY = PoolBounds(least=0, most=10)


def load(pages: int, ready: int = 1, **more: object) -> PoolSignals:
    return PoolSignals(ready=ready, pages_per_replica=100, slots_per_replica=8, held_pages=pages, **more)


class Pool:
    """A pool that is looked at every two seconds. Replicas are ready at once unless ``ready`` says otherwise."""

    def __init__(self, current: int, bounds: PoolBounds = ANY) -> None:
        self.scaler, self.current, self.bounds, self.now_s = PoolScaler(SETTINGS, 0.0), current, bounds, 0.0
        self.reasons: list[str] = []

    def see(self, signals: PoolSignals | None, seconds: float = 2) -> int:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 2
            decision = self.scaler.decide(self.current, self.bounds, signals, self.now_s)
            if decision.target != self.current:
                self.reasons.append(decision.reason)
            self.current = decision.target
        return self.current


def test_a_pool_grows_at_once_and_shrinks_after_a_minute_of_less_load():
    pool = Pool(1)
    assert pool.see(load(400)) == 5
    assert pool.see(load(100), 58) == 5
    assert pool.see(load(100), 4) == 2
    assert pool.reasons == ["pages", "less load"]


def test_a_peak_within_the_minute_keeps_its_replicas():
    pool = Pool(1)
    for _ in range(10):
        pool.see(load(400))
        pool.see(load(10), 50)
    assert (pool.current, pool.reasons) == (5, ["pages"])


def test_a_missing_signal_keeps_the_count_and_a_new_leader_shrinks_nothing_at_once():
    pool = Pool(4)
    assert pool.see(load(10), 50) == 4
    assert pool.see(None, 600) == 4
    assert pool.see(load(10), 58) == 4
    assert pool.see(load(10), 4) == 1


def test_an_idle_pool_keeps_one_replica_for_its_idle_time_and_wakes_at_the_first_request():
    pool = Pool(1)
    pool.see(load(10))
    assert pool.see(load(0), 298) == 1
    assert pool.see(load(0), 4) == 0
    assert pool.see(PoolSignals(ready=0), 1000) == 0
    assert pool.see(PoolSignals(ready=0, waiting_requests=300, waiting_pages=350)) == 4, "it remembers a replica's size"
    assert pool.see(PoolSignals(ready=0), 200) == 1, "the refused caller has not come back yet"
    assert pool.reasons == ["less load", "pages", "less load"]


def test_a_forecast_is_one_more_ask_that_neither_lowers_a_target_nor_counts_as_a_need():
    scaler = PoolScaler(SETTINGS, 0.0)
    ahead = scaler.decide(1, ANY, load(50), 2.0, 4)
    assert (ahead.target, ahead.reason, ahead.need) == (4, "forecast", 1)
    assert scaler.decide(4, ANY, load(500), 4.0, 2).target == 6
    assert scaler.decide(1, PoolBounds(least=0, most=3), load(50), 6.0, 9).target == 3
    assert scaler.decide(2, ANY, None, 8.0, 5).target == 2, "without signals the count stays"


def test_a_pool_of_a_fixed_count_needs_no_signal():
    pool = Pool(7, PoolBounds(least=2, most=2))
    assert pool.see(None) == 2
    assert pool.reasons == ["bounds"]


def test_latency_asks_once_for_the_replicas_that_it_needs():
    pool = Pool(2, PoolBounds(least=1, most=10, itl_ms=50))
    late = load(50, ready=2, itl_p95_ms=70, output_tokens_per_s=200)
    assert pool.see(late, 28) == 2, "latencies of another number of replicas may be among them"
    assert pool.see(late, 4) == 3
    assert pool.see(late, 20) == 3, "the third starts"
    assert pool.see(load(50, ready=3, itl_p95_ms=70, output_tokens_per_s=200), 20) == 3
    assert pool.reasons == ["latency"]


def test_the_rate_at_which_a_target_was_missed_keeps_replicas_when_latency_is_good_again():
    pool = Pool(2, PoolBounds(least=1, most=10, itl_ms=50))
    pool.see(load(50, ready=2, itl_p95_ms=70, output_tokens_per_s=200), 32)
    good = load(50, ready=3, itl_p95_ms=20, output_tokens_per_s=200)
    assert pool.see(good, 600) == 3, "two served 100 tokens per second each, and were late"
    assert pool.see(load(50, ready=3, itl_p95_ms=20, output_tokens_per_s=120), 70) == 2
    assert pool.see(load(50, ready=2, itl_p95_ms=20, output_tokens_per_s=120), 4000) == 1, "forgotten after an hour"


@given(st.lists(st.integers(0, 1200), min_size=5, max_size=60), st.integers(0, 10))
def test_no_load_takes_a_pool_below_what_it_needs_or_out_of_its_bounds(loads, current):
    pool = Pool(current, PoolBounds(least=1, most=10))
    for pages in loads:
        target = pool.see(load(pages))
        assert 1 <= target <= 10
        assert target == 10 or pages <= 90 * target


@pytest.mark.parametrize("shrink", [91, 95])
def test_percentages_between_which_a_pool_would_flap_are_refused(shrink):
    with pytest.raises(ValueError, match="lower it, or pools grow and shrink in turn"):
        FleetSettings(fleet_shrink_load_percent=shrink)


def test_a_start_is_measured_from_the_first_report_to_ready():
    starts = StartTimes()
    one, two = ({"replica_id": name, "pool": "chat"} for name in ("rep_1", "rep_2"))
    assert starts.observe([replica_status(**one, state="starting")], 10) == {}
    assert starts.observe([replica_status(**one, state="starting"), replica_status(**two, state="starting")], 20) == {}
    assert starts.observe([replica_status(**one), replica_status(**two, state="failed")], 52) == {"chat": 42}
    assert starts.observe([replica_status(**one), replica_status(**two)], 60) == {}
