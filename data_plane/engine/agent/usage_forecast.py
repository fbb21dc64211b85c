"""When an adapter will be asked for again, guessed from when it was asked for before: pure bookkeeping over times.

Nothing is fetched here; a wrong guess costs a useless load and nothing else.
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
_ERROR_SHARE_MAX: Final = 0.25  # a gap guessed wrong by more than a quarter of itself is no forecast
_TOLERANCE_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next use of ``name`` is expected at ``due_s``, give or take ``tolerance_s``; both in the caller's seconds."""

    name: str
    due_s: float
    tolerance_s: float


@dataclass(slots=True)
class _Uses:
    """Starts of the last visits, and the last use of all. ``next_gap`` is None while there is no forecast."""

    last_s: float
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=_VISITS_KEPT))
    next_gap: tuple[float, float] | None = None


def predict_gap(gaps: Sequence[float]) -> tuple[float, float] | None:
    """The next gap and the mean error of such guesses, from the gaps so far in their order; None where there are too
    few of them or they follow no rhythm.

    Two guesses compete: the median, which sees a period through a visit that was missed, and a moving average that
    leans to the newest, which follows a rhythm that changes. The one that would have done better so far is taken.
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
    """Times at which adapters were used. At most ``names_max`` are known; the least recently used is forgotten first.

    Uses less than ``visit_gap_s`` apart are one visit: what is asked for all the time needs no forecast.
    """

    def __init__(self, *, names_max: int, visit_gap_s: float) -> None:
        self._names_max = names_max
        self._visit_gap_s = visit_gap_s
        self._uses: OrderedDict[str, _Uses] = OrderedDict()  # the least recently noted first

    def note(self, name: str, at_s: float) -> None:
        """One use. Times of one name that do not go forward are ignored, so noting twice changes nothing."""
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
        """When it was used last; None where that is not known."""
        uses = self._uses.get(name)
        return None if uses is None else uses.last_s

    def due(self, now_s: float, *, horizon_s: float) -> list[Forecast]:
        """What should be used within the next ``horizon_s``, the soonest first. What is overdue by more than its
        tolerance is left out: its rhythm has broken.
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
