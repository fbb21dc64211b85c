"""How many lines of one batch run at once. Pure, apart from the clock that the caller passes."""

from typing import Final

_FIRST: Final = 8
"""Lines at once in the beginning, so that a small batch takes one round."""
_SHRINK_PAUSE_S: Final = 2.0
"""Refusals within this time have one cause, and count once."""


class Pace:
    """The number of lines at once: additive increase while answers come, halved when a gateway refuses one for lack of
    room (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms", 1989). So it follows the free pages. Before
    the first refusal it doubles with each round of answers, as TCP does (RFC 5681, slow start).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(_FIRST, most))
        self._shrunk_at = float("-inf")

    @property
    def limit(self) -> int:
        """Lines that may run at once now."""
        return int(self._limit)

    def answered(self) -> None:
        """A line got its answer."""
        never_refused = self._shrunk_at == float("-inf")
        self._limit = min(float(self._most), self._limit + (1 if never_refused else 1 / self._limit))

    def refused(self, now_s: float) -> None:
        """A line was refused for lack of room."""
        if now_s - self._shrunk_at >= _SHRINK_PAUSE_S:
            self._shrunk_at, self._limit = now_s, max(1.0, self._limit / 2)
