"""The calibration's sweep and its windows, without an engine."""

import pytest

from benchmarks.calibration import SWEEPS, fixed_weights_error_ppm, observed, result_of
from billing.costs.step_model import Observation, StepWork
from core.errors import Unprocessable
from data_plane.engine.steps import EngineSteps


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_varies_what_the_fit_must_tell_apart(name):
    sweep = SWEEPS[name]
    prompts, concurrencies, adapters, outputs = (set(values) for values in zip(*sweep.cells, strict=True))
    assert min(map(len, (prompts, concurrencies, adapters, outputs))) >= 2
    assert 1 in outputs
    assert all(cell[2] <= cell[1] for cell in sweep.cells)
    assert sweep.cells == SWEEPS[name].cells
    assert sweep.cells != sorted(sweep.cells)


def test_a_window_is_what_the_counters_grew_by():
    before = EngineSteps(busy_ns=1_999_999, steps=5, prefill_tokens=100)
    after = EngineSteps(busy_ns=800_000_000, steps=9, prefill_tokens=400, decode_tokens=7, adapter_steps=4)
    assert observed((before, 10), (after, 35)) == Observation(
        work=StepWork(steps=4, prefill_tokens=300, decode_tokens=7, adapter_steps=4), busy_ms=799, stall_ms=25
    )


def test_fixed_weights_are_judged_at_their_best_scale_on_windows_that_it_was_not_fitted_to():
    works = [StepWork(steps=1, prefill_tokens=10 * number, decode_tokens=number) for number in range(1, 26)]
    fitting = [Observation(work=work, busy_ms=7 * (work.prefill_tokens + 2 * work.decode_tokens)) for work in works]
    assert fixed_weights_error_ppm(fitting) == 0
    slower = [
        Observation(work=each.work, busy_ms=2 * each.busy_ms) if number % 5 == 0 else each
        for number, each in enumerate(fitting, 1)
    ]
    assert fixed_weights_error_ppm(slower) == 500_000


def test_a_result_needs_enough_windows():
    with pytest.raises(Unprocessable, match="0 measured windows"):
        result_of(SWEEPS["short"], "an engine", [])
