"""Forecasts the next use of an adapter from its past uses: pure bookkeeping over times.

Nothing is loaded here. A wrong forecast only costs a useless load.
"""

import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

_VISITS_KEPT: Final = 9
_GAPS_MIN: Final = 3
_WEIGHT_OF_NEWEST: Final = 0.5
_ERROR_SHARE_MAX: Final = 0.25  # a forecast whose mean error is above a quarter of the gap is discarded
_TOLERANCE_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next use of ``name`` is expected at ``due_s``, give or take ``tolerance_s``; both in the caller's seconds."""

    name: str
    due_s: float
    tolerance_s: float


@dataclass(slots=True)
class _Uses:
    """The starts of the last visits, and the last use. ``next_gap`` is None while there is no forecast."""

    last_s: float
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=_VISITS_KEPT))
    next_gap: tuple[float, float] | None = None


def predict_gap(gaps: Sequence[float]) -> tuple[float, float] | None:
    """Predict the next gap from the past gaps, in their order. Returns (gap, mean error of such predictions), None when
    there are too few gaps or no rhythm.

    Two predictors compete: the median, which finds a period despite a missed visit, and a moving average weighted to
    the newest gap, which follows a changing rhythm. The predictor with the smaller past error wins.
    """
    if len(gaps) < _GAPS_MIN:
        return None
    guesses = []
    for guess in (statistics.median, _moving_average):
        errors = [abs(guess(gaps[:known]) - gaps[known]) for known in range(1, len(gaps))]
        guesses.append((statistics.fmean(errors), guess(gaps)))
    error, gap = min(guesses)
    return (gap, error) if error <= _ERROR_SHARE_MAX * gap else None


def _moving_average(gaps: Sequence[float]) -> float:
    average = gaps[0]
    for gap in gaps[1:]:
        average += _WEIGHT_OF_NEWEST * (gap - average)
    return average


class UsageHistory:
    """Times at which adapters were used. At most ``names_max`` adapters are kept; the least recently used is evicted
    first.

    Uses less than ``visit_gap_s`` apart are one visit: an adapter in constant use needs no forecast.
    """

    def __init__(self, *, names_max: int, visit_gap_s: float) -> None:
        self._names_max = names_max
        self._visit_gap_s = visit_gap_s
        self._uses: OrderedDict[str, _Uses] = OrderedDict()  # the least recently recorded first

    def record(self, name: str, at_s: float) -> None:
        """Record one use. A time that is not later than the last one is ignored, so recording twice changes nothing."""
        uses = self._uses.get(name)
        if uses is None:
            self._uses[name] = uses = _Uses(at_s)
            uses.starts.append(at_s)
            if len(self._uses) > self._names_max:
                self._uses.popitem(last=False)
            return
        if at_s <= uses.last_s:
            return
        if at_s - uses.last_s >= self._visit_gap_s:
            uses.starts.append(at_s)
            starts = list(uses.starts)
            uses.next_gap = predict_gap([later - earlier for earlier, later in pairwise(starts)])
        uses.last_s = at_s
        self._uses.move_to_end(name)

    def last_use(self, name: str) -> float | None:
        """The time of the last use; None when it is unknown."""
        uses = self._uses.get(name)
        return None if uses is None else uses.last_s

    def due(self, now_s: float, *, horizon_s: float) -> list[Forecast]:
        """Adapters whose next use is expected within ``horizon_s``, the soonest first. An adapter that is overdue by
        more than its tolerance is left out: its rhythm has changed.
        """
        found = []
        for name, uses in self._uses.items():
            if uses.next_gap is None:
                continue
            gap, error = uses.next_gap
            tolerance = max(2 * error, _TOLERANCE_SHARE * gap)
            due = uses.starts[-1] + gap
            in_visit = now_s - uses.last_s < self._visit_gap_s
            if not in_visit and due - tolerance - horizon_s <= now_s <= due + tolerance:
                found.append(Forecast(name=name, due_s=due, tolerance_s=tolerance))
        return sorted(found, key=lambda forecast: (forecast.due_s, forecast.name))
