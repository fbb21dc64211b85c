"""Traces of requests to many adapters: which adapter, when, and how long. Pure; the same seed gives the same trace.

Popularity follows S-LoRA (``power``: index = n * U^(1/alpha) of a power distribution; alpha 1 is uniform, smaller is
more skewed) or Zipf's law; gaps are Gamma with the coefficient of variation ``cv`` (1 is Poisson, more is bursty), as
in S-LoRA's and vLLM's benchmarks.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Popularity = Literal["power", "zipf"]

TENANTS = 16
"""Adapters are assigned to this many tenants round-robin."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request: seconds after the start, and which adapter it is for."""

    at_s: float
    adapter: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class TraceShape:
    """How a trace is drawn. Lengths are uniform between their bounds, inclusive."""

    adapters: int
    popularity: Popularity
    skew: float
    rate_per_s: float
    cv: float
    duration_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seed: int


def draw(shape: TraceShape) -> list[Arrival]:
    """The arrivals ordered by time, all before ``duration_s``."""
    chance = np.random.default_rng(shape.seed)
    count = max(1, round(shape.rate_per_s * shape.duration_s))
    gaps = chance.gamma(1 / shape.cv**2, shape.cv**2 / shape.rate_per_s, count)
    times = np.cumsum(gaps) - gaps[0]
    adapters = _adapters(chance, shape, count)
    prompts = chance.integers(shape.prompt_tokens[0], shape.prompt_tokens[1] + 1, count)
    outputs = chance.integers(shape.output_tokens[0], shape.output_tokens[1] + 1, count)
    return [
        Arrival(at_s=float(at_s), adapter=int(adapter), prompt_tokens=int(prompt), output_tokens=int(output))
        for at_s, adapter, prompt, output in zip(times, adapters, prompts, outputs, strict=True)
        if at_s < shape.duration_s
    ]


def _adapters(chance: np.random.Generator, shape: TraceShape, count: int) -> np.ndarray:
    """Adapter numbers. Popularity is shuffled, so that a number does not reveal its rank."""
    if shape.popularity == "power":
        ranked = (chance.power(shape.skew, count) * shape.adapters).astype(int)
    else:
        weights = 1 / np.arange(1, shape.adapters + 1) ** shape.skew
        ranked = chance.choice(shape.adapters, count, p=weights / weights.sum())
    drawn: np.ndarray = chance.permutation(shape.adapters)[ranked]
    return drawn


def jain(values: list[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything, 0 when all are zero."""
    total, squares = sum(values), sum(value * value for value in values)
    return total * total / (len(values) * squares) if squares else 0.0
