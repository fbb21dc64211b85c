"""Rates and time by state."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.costs.rates import MS_PER_HOUR, DatedRate, NoRate, charge
from billing.costs.replica_time import StateSpan, charges, spans
from core import clock
from core.contracts.costs import CostWindow


def rate(from_ms: int, nanos_per_hour: int) -> DatedRate:
    return DatedRate(
        base_model="m",
        rank_max=16,
        effective_from=clock.from_ms(from_ms),
        nanos_per_hour=nanos_per_hour,
        slot_nanos_per_hour=0,
    )


RATES = [rate(0, 3_600_000_000)]


def window(start_s, end_s, state="ready", boot="boot_1", **changes) -> CostWindow:
    named = {"replica_id": "rep_1", "sequence": 0, "base_model": "m", "rank_max": 16, "engine": "e", "device": "d"}
    return CostWindow(**named, boot_id=boot, start_ms=start_s * 1_000, end_ms=end_s * 1_000, state=state, **changes)


@pytest.mark.scenario(175)
def test_a_rate_that_changes_inside_a_window_counts_from_its_instant():
    rates = [*RATES, rate(30_000, 7_200_000_000)]
    assert charge(rates, 0, 60_000) == 90_000_000 * MS_PER_HOUR


@pytest.mark.parametrize("rates", [[], [rate(1, 1)]])
def test_time_before_the_first_rate_is_refused_and_not_free(rates):
    with pytest.raises(NoRate, match="admin/costs/rates"):
        charge(rates, 0, 60_000)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True).map(sorted), st.integers(0, 10**6))
def test_charges_of_adjacent_times_add_up(borders, change_at):
    rates = [rate(0, 7), rate(change_at, 11)]
    parts = [charge(rates, start, end) for start, end in pairwise(borders)]
    assert sum(parts) == charge(rates, borders[0], borders[-1])


@pytest.mark.scenario(174)
def test_a_silent_replica_is_lost_until_it_is_given_up():
    found = spans([window(0, 45, "starting"), window(45, 60)], now_ms=300_000, lost_after_ms=22_500)
    assert found[-1] == StateSpan(start_ms=60_000, end_ms=82_500, state="lost", reported_ms=45_000)


def test_a_replica_that_ended_in_order_is_not_lost():
    found = spans([window(0, 60), window(60, 70, "draining", final=True)], now_ms=300_000, lost_after_ms=22_500)
    assert [span.state for span in found] == ["ready", "draining"]


def test_the_gap_before_the_next_boot_is_lost_and_no_longer_than_the_gap():
    found = spans(
        [window(0, 60), window(65, 80, "starting", boot="boot_2", final=True)], now_ms=300_000, lost_after_ms=22_500
    )
    assert [(span.start_ms, span.end_ms) for span in found if span.state == "lost"] == [(60_000, 65_000)]


def test_overlapping_and_repeated_windows_count_once():
    found = spans(
        [window(0, 60, busy_ms=60_000), window(0, 60, busy_ms=60_000), window(50, 70, busy_ms=20_000, final=True)],
        now_ms=70_000,
        lost_after_ms=0,
    )
    assert [(span.start_ms, span.end_ms, span.busy_ms) for span in found] == [
        (0, 60_000, 60_000),
        (60_000, 70_000, 10_000),
    ]


def test_time_is_charged_by_state_and_the_work_of_a_draining_replica_is_busy():
    found = charges(
        [
            StateSpan(start_ms=0, end_ms=1_000, state="starting", busy_ms=500),
            StateSpan(start_ms=1_000, end_ms=3_000, state="ready", busy_ms=500),
            StateSpan(start_ms=3_000, end_ms=4_000, state="unhealthy"),
            StateSpan(start_ms=4_000, end_ms=6_000, state="draining", busy_ms=1_500),
        ],
        RATES,
    )
    by_ms = {state: value // RATES[0].nanos_per_hour for state, value in found.items()}
    assert by_ms == {"starting": 1_000, "busy": 2_000, "idle": 1_500, "lost": 1_000, "draining": 500}


times = st.integers(0, 200)
windows = st.builds(
    lambda start, length, state, busy, final: window(start, start + length, state, busy_ms=busy, final=final),
    times, st.integers(1, 60), st.sampled_from(["starting", "ready", "draining", "unhealthy"]),
    st.integers(0, 90_000), st.booleans(),
)  # fmt: skip


@given(st.lists(windows, max_size=8), st.integers(0, 60_000))
def test_spans_never_overlap_and_are_never_busier_than_long(reported, lost_after_ms):
    found = spans(reported, now_ms=400_000, lost_after_ms=lost_after_ms)
    assert all(one.end_ms <= two.start_ms for one, two in pairwise(found))
    assert all(0 <= span.busy_ms <= span.end_ms - span.start_ms for span in found)
    covered = sum(span.end_ms - span.start_ms for span in found)
    assert sum(charges(found, RATES).values()) == covered * RATES[0].nanos_per_hour
