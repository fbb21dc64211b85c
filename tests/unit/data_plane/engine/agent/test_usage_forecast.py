"""The forecast of an adapter's next use: it finds a period, returns nothing without one, and is worth its loads."""

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.engine.agent.usage_forecast import UsageHistory, predict_gap

VISIT_GAP_S = 20


def history(**changes) -> UsageHistory:
    return UsageHistory(**{"names_max": 1000, "visit_gap_s": VISIT_GAP_S, **changes})


@given(period=st.floats(30, 100_000), visits=st.integers(4, 20), start=st.floats(0, 1e9))
def test_a_strict_period_is_predicted(period, visits, start):
    uses = history()
    for visit in range(visits):
        uses.record("ad", start + visit * period)
    last = start + (visits - 1) * period
    assert uses.due(last + period / 2, horizon_s=0.1 * period) == []
    (forecast,) = uses.due(last + 0.95 * period, horizon_s=0.1 * period)
    assert forecast.due_s == pytest.approx(last + period, rel=1e-6)
    assert uses.due(last + 1.2 * period, horizon_s=0.1 * period) == []


@given(period=st.floats(60, 10_000), missed=st.integers(2, 6))
def test_a_missed_visit_does_not_hide_the_period(period, missed):
    gaps = [period] * 7
    gaps[missed] = 2 * period
    predicted = predict_gap(gaps)
    assert predicted is not None
    assert predicted[0] == pytest.approx(period)


@given(st.lists(st.floats(1, 1e6), max_size=12))
def test_no_forecast_is_worse_than_a_quarter_of_its_gap(gaps):
    predicted = predict_gap(gaps)
    if predicted is None:
        return
    gap, error = predicted
    assert min(gaps) <= gap <= max(gaps)
    assert error <= gap / 4


@given(seed=st.integers(0, 2**32))
def test_a_rhythm_that_changes_is_followed(seed):
    draw = random.Random(seed)
    gaps, gap = [], 100.0
    for _ in range(8):
        gaps.append(gap)
        gap *= draw.uniform(1.10, 1.15)
    predicted = predict_gap(gaps)
    assert predicted is not None
    assert predicted[0] > gaps[-3]  # the median lags far behind


def test_noise_without_rhythm_gives_no_forecast():
    draw = random.Random(7)
    gaps = [draw.expovariate(1 / 300) for _ in range(8)]
    assert predict_gap(gaps) is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 1e6)), max_size=60))
def test_the_number_of_names_is_bounded_and_old_times_change_nothing(uses):
    known = history(names_max=3)
    for name, at_s in uses:
        known.record(name, at_s)
        before = known.last_use(name)
        known.record(name, at_s)
        known.record(name, at_s - 1)
        assert known.last_use(name) == before >= at_s
    assert sum(known.last_use(name) is not None for name in "abcdef") <= 3


def test_a_burst_is_one_visit():
    uses = history()
    for visit in range(6):
        for second in range(5):
            uses.record("ad", visit * 300 + second)
    (forecast,) = uses.due(5 * 300 + 290, horizon_s=30)
    assert forecast.due_s == pytest.approx(1800)


def hit_rate(*, prefetching: bool, seed: int = 11, adapters: int = 60, memory: int = 12, end_s: int = 20_000) -> float:
    """Share of visits whose first use hits memory, on a trace with mostly periodic and some random tenants."""
    draw = random.Random(seed)
    trace = []
    for number in range(adapters):
        period, at = draw.uniform(200, 900), draw.uniform(0, 900)
        while at < end_s:
            trace.append((at, f"ad_{number}"))
            at += draw.expovariate(1 / period) if number % 5 == 0 else period * draw.uniform(0.95, 1.05)
    trace.sort()
    uses, resident, hits, asked = history(), OrderedDict(), 0, 0
    waiting = iter(trace)
    at, name = next(waiting)
    for now in range(end_s):
        if prefetching and now % 2 == 0:
            for forecast in uses.due(now, horizon_s=5)[: memory // 2]:
                resident[forecast.name] = True
                resident.move_to_end(forecast.name)
        while at <= now:
            if now > end_s / 4:  # a rhythm is visible from then on
                asked += 1
                hits += name in resident
            resident[name] = True
            resident.move_to_end(name)
            uses.record(name, at)
            at, name = next(waiting, (end_s + 1, ""))
        while len(resident) > memory:
            resident.popitem(last=False)
    return hits / asked


def test_prefetching_by_forecast_turns_most_misses_of_a_periodic_trace_into_hits():
    without, forecast = hit_rate(prefetching=False), hit_rate(prefetching=True)
    print(f"hit rate in memory: {without:.2f} without forecast, {forecast:.2f} with it")
    assert without < 0.4
    assert forecast > 0.7
