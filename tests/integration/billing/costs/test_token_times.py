"""The GPU time of a token, from windows as agents report them."""

from billing.costs import cost_functions
from billing.costs.step_model import FitQuality, StepWeights
from billing.costs.token_times import token_times
from core.contracts.routes import GpuTime
from core.db import unit_of_work
from tests.integration.billing.costs.conftest import BASE

WORK = {"steps": 10, "prefill_tokens": 600, "decode_tokens": 200, "busy_ms": 2_500, "stall_ms": 500}


def times(costs, *, since_s: int = 0) -> dict[str, GpuTime]:
    with unit_of_work(costs.engine) as session:
        return token_times(session, since_ms=costs.hour_ms + since_s * 1_000)


def test_busy_time_without_loads_is_spread_over_what_was_computed(costs):
    """2 s over 600 prompt tokens and 200 generated ones, each of which counts twice before a fit."""
    costs.store(costs.window(0, 10, **WORK), costs.window(10, 20))
    assert times(costs) == {BASE: GpuTime(input_token_us=2_000, output_token_us=4_000)}


def test_times_are_rounded_to_the_nearest_microsecond(costs):
    costs.store(costs.window(0, 10, **WORK | {"prefill_tokens": 200}))
    assert times(costs) == {BASE: GpuTime(input_token_us=3_333, output_token_us=6_667)}


def test_starts_and_old_windows_do_not_count(costs):
    costs.store(costs.window(0, 10, **WORK), costs.window(10, 20, "starting", **(WORK | {"busy_ms": 9_000})))
    assert times(costs) == {BASE: GpuTime(input_token_us=2_000, output_token_us=4_000)}
    assert times(costs, since_s=5) == {}


def test_the_slowest_kind_of_replica_decides(costs):
    slow = WORK | {"busy_ms": 4_500, "rank_max": 64}
    costs.store(costs.window(0, 10, **WORK), costs.window(0, 10, replica_id="rep_2", boot_id="boot_2", **slow))
    assert times(costs) == {BASE: GpuTime(input_token_us=4_000, output_token_us=8_000)}


def test_a_fitted_cost_function_says_what_a_token_weighs(costs, monkeypatch):
    quality = FitQuality(observations=20, held_out=4, median_error_ppm=0, ratio_ppm=1_000_000)
    weights = StepWeights(prefill_token_ps=3, decode_token_ps=1)
    fitted = cost_functions.FittedFunction(
        id="cf_1", kind=None, weights=weights, quality=quality, measured_from_ms=0, measured_to_ms=1
    )
    monkeypatch.setattr(cost_functions, "in_force", lambda session, kind: fitted)
    costs.store(costs.window(0, 10, **WORK))
    assert times(costs) == {BASE: GpuTime(input_token_us=3_000, output_token_us=1_000)}
