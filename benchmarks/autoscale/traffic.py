"""Arrivals of requests by shape: how many come per second over an hour, and what each takes."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

HOUR_S: Final = 3600.0
_BUSY: Final = 28.0  # requests per second at a peak; one replica serves about three


def _diurnal(at_s: float) -> float:
    """A day in half an hour, twice."""
    return 2 + (_BUSY - 2) * (1 - math.cos(2 * math.pi * at_s / (HOUR_S / 2))) / 2


def _ramp(at_s: float) -> float:
    """Forty minutes up, then down at once."""
    return 1 + (_BUSY - 1) * at_s / 2400 if at_s < 2400 else 2.0


def _flash_crowd(at_s: float) -> float:
    """A minute up to ten times as many, then slowly down."""
    since = at_s - 1200
    if since < 0:
        return 2.5
    return 2.5 + 25 * (since / 60 if since < 60 else math.exp(-(since - 60) / 600))


def _spike(at_s: float) -> float:
    """Twenty times as many, at once, for five minutes."""
    return 30.0 if 1200 <= at_s < 1500 else 1.5


def _bursts(at_s: float) -> float:
    """Six times as many for 30 s of every two minutes."""
    return 18.0 if at_s % 120 < 30 else 3.0


SHAPES: Final[dict[str, Callable[[float], float]]] = {
    "diurnal": _diurnal, "ramp": _ramp, "flash crowd": _flash_crowd, "20x spike": _spike, "bursts": _bursts,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimRequest:
    """``pages`` is the ceiling that its reservation holds."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    pages: int


def requests(shape: Callable[[float], float], seed: int) -> Iterator[SimRequest]:
    """A Poisson process of this rate, by thinning."""
    dice, at_s, most = random.Random(seed), 0.0, 32.0
    while (at_s := at_s + dice.expovariate(most)) < HOUR_S:
        if dice.random() * most < shape(at_s):
            prompt = min(int(dice.lognormvariate(5.5, 0.7)) + 1, 4000)
            output = min(int(dice.lognormvariate(5.6, 0.6)) + 1, 1024)
            yield SimRequest(at_s, prompt, output, -(-(prompt + 1024) // 16))
