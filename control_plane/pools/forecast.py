"""How many replicas a pool will need until one that starts now is ready, by what it needed at the same time of earlier
weeks or days. Pure: ``needs`` keeps what was needed.

Time is cut into slots; the need of a slot is the mean of the replicas that the load asked for in it: a burst within a
slot is left to the present load, which keeps the replicas of a burst for a while. Weeks and days are those of UTC, so
when local clocks change, loads shift against their history by an hour.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

SLOT_S: Final = 300
DAY: Final = 86_400 // SLOT_S
WEEK: Final = 7 * DAY
_SEASONS: Final = ((WEEK, 4), (DAY, 7))  # the same time of as many weeks, or else of as many days
_KNOWN_MIN: Final = 3
_QUANTILE: Final = 0.8
_LEVEL_SLOTS: Final = 6
_LEVEL_LEAST, _LEVEL_MOST = 0.5, 1.5


def slot_of(unix_s: float) -> int:
    """The slot of an instant."""
    return int(unix_s // SLOT_S)


def slots_read(first: int, last: int) -> set[int]:
    """The slots whose needs a forecast for these two and those between them reads."""
    return {
        *range(first - _LEVEL_SLOTS, first),
        *(past for slot in range(first - _LEVEL_SLOTS, last + 1) for past in _earlier(slot)),
    }


@dataclass(slots=True)
class SlotNeed:
    """The need of one slot so far."""

    slot: int
    total: float = 0.0
    rounds: int = 0

    def add(self, replicas: int) -> None:
        """The load asks for so many now."""
        self.total += replicas
        self.rounds += 1

    @property
    def mean(self) -> float:
        """The mean of all that was added."""
        return self.total / max(1, self.rounds)


def expected_need(needs: Mapping[int, float], first: int, last: int) -> int | None:
    """The replicas that the slots from ``first``, the present one, to ``last`` will need; None where the past tells too
    little. It is the upper quantile of their past, scaled by how the last half hour compares with its own past.
    """
    usual = _known(_usual(needs, slot) for slot in range(first, last + 1))
    if not usual:
        return None
    recent = [(needs[slot], _usual(needs, slot)) for slot in range(first - _LEVEL_SLOTS, first) if slot in needs]
    compared = [(seen, past) for seen, past in recent if past]
    level = sum(seen for seen, _ in compared) / sum(past for _, past in compared) if compared else 1.0
    return math.ceil(round(max(usual) * min(max(level, _LEVEL_LEAST), _LEVEL_MOST), 6))


def _usual(needs: Mapping[int, float], slot: int) -> float | None:
    for season, times in _SEASONS:
        past = sorted(_known(needs.get(slot - number * season) for number in range(1, times + 1)))
        if len(past) >= _KNOWN_MIN:
            return past[math.ceil(_QUANTILE * len(past)) - 1]
    return None


def _earlier(slot: int) -> Iterator[int]:
    for season, times in _SEASONS:
        yield from (slot - number * season for number in range(1, times + 1))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
