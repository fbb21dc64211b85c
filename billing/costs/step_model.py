"""The cost function of an engine: how long its steps take, as a sum of non-negative parts fitted to measurements. Pure.

step time = fixed + prefill tokens + decode tokens + context tokens read + distinct adapters (+ load stalls, measured).
The sum is linear, so windows of many steps are fitted as well as single ones. Weights are whole picoseconds, so that
the shares of a cost are whole numbers too (``costs.allocation``). The form follows VTC's profiled cost
(arXiv 2401.00588) and step-time models of simulators; docs/COSTS.md has the reasons.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import Final

import msgspec

from core.errors import Unprocessable

PS_PER_MS: Final = 1_000_000_000
PPM: Final = 1_000_000
ERROR_PPM_MAX: Final = 100_000  # a median error above 10 % is flagged
RATIO_PPM_MIN, RATIO_PPM_MAX = 800_000, 1_250_000
OBSERVATIONS_MIN: Final = 20
BUSY_MS_MIN: Final = 5  # a shorter window says more about the clock than about the engine
_HELD_OUT_EVERY: Final = 5


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What steps did. ``sequence_steps`` counts a sequence once in each step that it took part in; ``adapter_steps``
    counts each distinct adapter once in each step; ``context_tokens`` are the tokens that decode steps read.
    """

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0
    sequence_steps: int = 0
    adapter_steps: int = 0


class StepWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Picoseconds per step and per unit of work."""

    fixed_ps: int = 0
    prefill_token_ps: int = 0
    decode_token_ps: int = 0
    context_token_ps: int = 0
    adapter_ps: int = 0

    def predict_ps(self, work: StepWork) -> int:
        """The time of these steps without load stalls."""
        return (
            self.fixed_ps * work.steps
            + self.prefill_token_ps * work.prefill_tokens
            + self.decode_token_ps * work.decode_tokens
            + self.context_token_ps * work.context_tokens
            + self.adapter_ps * work.adapter_steps
        )


UNFITTED: Final = StepWeights(prefill_token_ps=PS_PER_MS, decode_token_ps=2 * PS_PER_MS)
"""Shares before anything is measured: VTC's default of 1 for a prompt token and 2 for an output token."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that were measured together. ``busy_ms`` includes ``stall_ms``, the loads for which steps waited."""

    work: StepWork
    busy_ms: int
    stall_ms: int = 0

    @property
    def step_ms(self) -> int:
        """Time of the steps without load stalls."""
        return self.busy_ms - self.stall_ms


class FitQuality(msgspec.Struct, frozen=True, kw_only=True):
    """How well weights predict observations that they were not fitted to, in parts per million."""

    observations: int
    held_out: int
    median_error_ppm: int
    ratio_ppm: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Why this cost function needs a new calibration; empty when it does not."""
        return flags_of(self.median_error_ppm, self.ratio_ppm)


def flags_of(median_error_ppm: int, ratio_ppm: int) -> tuple[str, ...]:
    """``median_error`` above 10 %, ``predicted_over_measured`` outside 0.8 to 1.25."""
    found = []
    if median_error_ppm > ERROR_PPM_MAX:
        found.append("median_error")
    if not RATIO_PPM_MIN <= ratio_ppm <= RATIO_PPM_MAX:
        found.append("predicted_over_measured")
    return tuple(found)


def ratio_ppm(predicted_ps: int, measured_ms: int) -> int | None:
    """Predicted over measured time in parts per million; None without measured time."""
    return None if measured_ms <= 0 else predicted_ps * PPM // (measured_ms * PS_PER_MS)


def fit(observations: Sequence[Observation]) -> tuple[StepWeights, FitQuality]:
    """Fit by non-negative least squares of the relative errors, and measure the error on every fifth observation, which
    the fit has not seen. The order of ``observations`` decides which these are, so a fit can be repeated.

    Raises Unprocessable for too few observations.
    """
    fitted_to, held_out = split(observations)
    weights = _solve(fitted_to)
    return weights, quality(weights, held_out, observations=len(fitted_to) + len(held_out))


def split(observations: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """The usable observations that a fit sees, and those that it does not. Raises Unprocessable for too few."""
    usable = [each for each in observations if each.step_ms >= BUSY_MS_MIN and each.work.steps > 0]
    if len(usable) < OBSERVATIONS_MIN:
        raise Unprocessable(
            f"{len(usable)} measured windows with work; a fit needs {OBSERVATIONS_MIN}. Run `python -m "
            "benchmarks.calibration` or wait for traffic.",
            code="too_few_observations",
        )
    held_out = usable[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
    return [each for number, each in enumerate(usable, 1) if number % _HELD_OUT_EVERY], held_out


def quality(weights: StepWeights, held_out: Sequence[Observation], *, observations: int) -> FitQuality:
    """The errors of a cost function on observations that it was not fitted to."""
    predicted = [weights.predict_ps(each.work) for each in held_out]
    measured = [each.step_ms * PS_PER_MS for each in held_out]
    errors = [abs(guess - real) * PPM // real for guess, real in zip(predicted, measured, strict=True)]
    return FitQuality(
        observations=observations,
        held_out=len(held_out),
        median_error_ppm=median_low(errors),
        ratio_ppm=sum(predicted) * PPM // sum(measured),
    )


def described(weights: StepWeights, quality: FitQuality) -> str:
    """The cost function and its error for people, on two lines."""

    def ms(picoseconds: int) -> str:
        return f"{picoseconds // PS_PER_MS}.{picoseconds % PS_PER_MS * 10_000 // PS_PER_MS:04d}"

    flags = f"; FLAGGED: {', '.join(quality.flags)}" if quality.flags else ""
    return (
        f"  step ms = {ms(weights.fixed_ps)} + {ms(weights.prefill_token_ps)}/prompt token"
        f" + {ms(weights.decode_token_ps)}/decoded token + {ms(weights.context_token_ps * 1000)}/1000 context tokens"
        f" + {ms(weights.adapter_ps)}/adapter\n"
        f"  {quality.observations} windows, {quality.held_out} held out: median error"
        f" {quality.median_error_ppm // 1_000 / 10:.1f} %, predicted/measured {quality.ratio_ppm // 1_000 / 1_000:.3f}"
        f"{flags}"
    )


def _regressors(work: StepWork) -> tuple[int, ...]:
    """In the order of ``StepWeights``."""
    return (work.steps, work.prefill_tokens, work.decode_tokens, work.context_tokens, work.adapter_steps)


def _solve(observations: Sequence[Observation]) -> StepWeights:
    import numpy as np  # late: the billing worker prices requests without either
    from scipy.optimize import nnls

    measured = np.array([each.step_ms for each in observations], dtype=np.float64)
    rows = np.array([_regressors(each.work) for each in observations], dtype=np.float64) / measured[:, None]
    scales = rows.max(axis=0)
    scales[scales == 0] = 1  # work that never occurred gets the weight 0
    solution, _ = nnls(rows / scales, np.ones(len(observations)))
    fixed, prefill, decode, context, adapter = (round(each) for each in solution / scales * PS_PER_MS)
    return StepWeights(
        fixed_ps=fixed,
        prefill_token_ps=prefill,
        decode_token_ps=decode,
        context_token_ps=context,
        adapter_ps=adapter,
    )
