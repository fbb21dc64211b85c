"""The fit finds known weights again, and says how far it is off on what it has not seen."""

import random

import pytest

from billing.costs.step_model import Observation, StepWeights, StepWork, fit, flags_of
from core.errors import Unprocessable

TRUE = StepWeights(
    fixed_ps=5_000_000_000,
    prefill_token_ps=100_000_000,
    decode_token_ps=2_000_000_000,
    context_token_ps=10_000_000,
    adapter_ps=3_000_000_000,
)


def observations(count: int, *, noise: float = 0.0, seed: int = 1) -> list[Observation]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        steps, sequences = draw.randint(20, 200), draw.randint(1, 64)
        work = StepWork(
            steps=steps,
            prefill_tokens=draw.randint(0, 20_000),
            decode_tokens=steps * sequences,
            context_tokens=steps * sequences * draw.randint(16, 2_000),
            sequence_steps=steps * sequences,
            adapter_steps=steps * draw.randint(0, 16),
        )
        stall_ms = draw.choice([0, 0, 0, 400])
        predicted = TRUE.predict_ps(work) / 1e9 * draw.uniform(1 - noise, 1 + noise)
        found.append(Observation(work=work, busy_ms=round(predicted) + stall_ms, stall_ms=stall_ms))
    return found


def test_the_fit_finds_the_weights_that_made_the_measurements():
    weights, quality = fit(observations(200))
    for name in StepWeights.__struct_fields__:
        assert getattr(weights, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    assert quality.median_error_ppm < 1_000
    assert quality.flags == ()
    assert (quality.observations, quality.held_out) == (200, 40)


def test_noise_shows_in_the_held_out_error():
    _, quality = fit(observations(400, noise=0.5))
    assert quality.median_error_ppm > 150_000
    assert "median_error" in quality.flags


def test_a_fit_repeats_exactly():
    measured = observations(60, noise=0.2)
    assert fit(measured) == fit(measured)


def test_weights_are_never_negative_and_work_that_never_occurs_weighs_nothing():
    measured = [
        Observation(work=StepWork(steps=10, prefill_tokens=tokens), busy_ms=1_000 - tokens)
        for tokens in range(0, 400, 10)
    ]
    weights, _ = fit(measured)
    assert min(getattr(weights, name) for name in StepWeights.__struct_fields__) >= 0
    assert weights.decode_token_ps == weights.adapter_ps == 0


def test_too_few_observations_are_refused_with_the_way_out():
    with pytest.raises(Unprocessable, match=r"19 measured windows.*benchmarks\.calibration"):
        fit(observations(19))


@pytest.mark.parametrize(
    ("error", "ratio", "flags"),
    [
        (100_000, 800_000, ()),
        (100_001, 1_250_000, ("median_error",)),
        (0, 799_999, ("predicted_over_measured",)),
        (0, 1_250_001, ("predicted_over_measured",)),
    ],
)
def test_a_cost_function_is_flagged_beyond_its_bounds(error, ratio, flags):
    assert flags_of(error, ratio) == flags
