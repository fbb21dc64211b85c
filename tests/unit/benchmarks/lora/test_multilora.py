"""Traces match their description and repeat by seed, and benchmarks reproduce figures calculated by hand."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import Answer, Load, quantile
from benchmarks.lora.multilora import judged, summary
from benchmarks.lora.replica import Served
from benchmarks.lora.tax import CONCURRENCIES, Shape, ratios
from benchmarks.trace import Arrival, TraceShape, draw, jain
from tests.fixtures.examples import examples

SHAPE = TraceShape(
    adapters=50, popularity="zipf", skew=1.0, rate_per_s=100, cv=1.0, duration_s=60, prompt_tokens=(8, 48),
    output_tokens=(4, 9), seed=7,
)  # fmt: skip


@given(
    st.sampled_from(["zipf", "power"]), st.sampled_from([0.3, 1.0]), st.sampled_from([1.0, 4.0]), st.integers(1, 1000)
)
@examples(30)
def test_a_trace_has_the_requested_shape_and_repeats(popularity, skew, cv, adapters):
    shape = dataclasses.replace(SHAPE, popularity=popularity, skew=skew, cv=cv, adapters=adapters)
    trace = draw(shape)
    assert trace == draw(shape)
    assert all(early.at_s <= late.at_s < shape.duration_s for early, late in itertools.pairwise(trace))
    assert all(0 <= each.adapter < adapters and 8 <= each.prompt_tokens <= 48 for each in trace)
    assert all(4 <= each.output_tokens <= 9 for each in trace)


def test_jain_and_quantiles():
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0
    values = [float(each) for each in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50, 99, 100)
    assert (quantile([7.0], 0.5), quantile([], 0.5)) == (7, 0)


def served(adapter: int, tier: str, first_token_s: float) -> Served:
    arrival = Arrival(at_s=0, adapter=adapter, prompt_tokens=8, output_tokens=10)
    answer = Answer(model="m", first_token_s=first_token_s, total_s=2, output_tokens=10)
    return Served(arrival=arrival, answer=answer, tier=tier, load_ms=3, stall_ms=1, late_s=0.0)


def test_a_summary_reports_tiers_hits_stalls_and_fairness():
    seen = [served(0, "store", 0.9), served(0, "slot", 0.1), served(1, "disk", 0.5), served(17, "slot", 3.0)]
    found = summary(SHAPE, seen, [2.0, 4.0], 10.0)
    assert found["hit_rate"] == {"slot": 0.5, "memory": 0, "disk": 0.25, "store": 0.25}
    assert found["first_token_s_by_tier"]["store"] == {"requests": 1, "p50": 0.9, "p99": 0.9}
    assert found["first_token_s_by_tier"]["slot, again"]["requests"] == 1
    assert found["tokens_per_s"] == 4.0
    assert found["stall"] == {"loads_in_step": 2, "ms_p50": 2.0, "ms_p99": 4.0, "share_of_time": 0.0006}
    # tenant 0 had both of its requests in time; tenant 1 has adapters 1 and 17, and one of two
    assert found["jain_of_tenants_within_1_s"] == pytest.approx((1 + 0.5) ** 2 / (2 * (1 + 0.25)))


def test_goals_are_met_or_missed_by_their_figures():
    result = {
        "saturated": [
            {"adapters": 5, "rounds": [200.0, 100.0, 210.0]},
            {"adapters": 1000, "rounds": [190.0, 99.0, 150.0]},
        ],
        "cliff": [{"p50_s": 0.1}, {"p50_s": 0.4}],
        "store_first_hit": {"p99_s": 1.2},
    }
    assert [(row["seen"], row["met"]) for row in judged(result).values()] == [(0.95, True), (4.0, False), (1.2, True)]


def test_ratios_are_taken_within_rounds():
    shape = Shape(rounds=2, prompt_tokens=1, output_tokens=10, rank=8, seed=1, counts=(1,))

    def load(seconds: float) -> Load:
        return Load(answers=[served(0, "slot", seconds / 10).answer], seconds=seconds)

    loads = {(0, at_once): [load(1.0), load(4.0)] for at_once in CONCURRENCIES}
    loads |= {
        (1, at_once): [load(2.0), load(8.0)] for at_once in CONCURRENCIES
    }  # half as fast in a fast and a slow round
    rows = [row for row in ratios(loads, shape) if row["adapters"] == 1]
    assert [row["throughput_ratio"] for row in rows] == [0.5, 0.5, 0.5]
    assert [row["first_token_ratio"] for row in rows] == [2, 2, 2]
