"""Chooses how many threads compute a training step, from the time that steps took and the cores that were idle. It
imports no torch.

The threads of a step wait for each other at every operation. Where another process keeps a core busy, all wait for the
thread on that core: two threads took 2.2 to 4 s for a step that one thread computed in 0.8 s. On an idle machine two
threads took 0.57 s. Only a measurement can distinguish the two cases.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# A count that is this much slower than the best gets one step instead of two. Its step took long enough.
_HOPELESS_RATIO: Final = 1.5
# Other processes come and go. All counts are tried again after so many steps, or when the chosen count stays slow. A
# trial that confirms the count doubles the number: two threads took up to 4 s for a step beside a busy core.
_STEPS_BETWEEN_TRIALS: Final = 25
_SLOW_STEPS_MAX: Final = 3
# They are also tried once another process has ended: when so many more cores have been idle than after the last trial,
# for an eighth of the pause. A training that did not look computed 50 s on one of two cores, with the other idle.
_FREED_CORES: Final = 0.25
_PAUSE_TO_FREED_RATIO: Final = 8
_PROC_STAT: Final = Path("/proc/stat")


def idle_core_seconds() -> float:
    """How long the cores of this machine have been idle, all together, since its start; 0 where Linux does not say."""
    try:
        _name, _user, _nice, _system, idle, waiting = _PROC_STAT.read_text().split(maxsplit=6)[:6]
    except (OSError, ValueError):
        return 0.0
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")


def candidate_counts(cores: int) -> list[int]:
    """The counts worth a trial: powers of two, all cores, and all but one. Few, since a trial costs a step or two."""
    powers = {2**exponent for exponent in range(cores.bit_length())}
    return sorted(count for count in powers | {cores - 1, cores} if count > 0)


class ThreadCount:
    """Give each step's figures to ``record``, and compute the next step with ``current`` threads."""

    def __init__(self, candidates: Iterable[int]) -> None:
        self._candidates = list(candidates)
        self.current = self._candidates[0]
        self._untried = list(self._candidates)
        self._paces: dict[int, float] = {}  # seconds a token, of the counts tried since the last trial began
        self._steps_since_trial = self._slow_steps = self._freed_steps = 0
        self._idle_cores = 0.0  # in the first step after the last trial
        self._chosen = 0  # by the last trial; 0 before the first
        self._pause_steps = _STEPS_BETWEEN_TRIALS

    def record(self, elapsed_s: float, tokens: int, idle_cores: float) -> None:
        """Record that a step of ``tokens`` took ``elapsed_s`` with ``current`` threads. ``idle_cores``: meanwhile."""
        pace = elapsed_s / tokens
        if self._untried:
            self._try(pace)
            return
        self._steps_since_trial += 1
        self._slow_steps = self._slow_steps + 1 if pace > _HOPELESS_RATIO * self._paces[self.current] else 0
        if self._steps_since_trial == 1:
            self._idle_cores = idle_cores
        self._freed_steps = self._freed_steps + 1 if idle_cores >= self._idle_cores + _FREED_CORES else 0
        # One thread waits for no other, so its slow steps are no reason to try fewer.
        slow = self._slow_steps >= _SLOW_STEPS_MAX and self.current > min(self._candidates)
        freed = self._freed_steps >= self._pause_steps // _PAUSE_TO_FREED_RATIO and self.current < max(self._candidates)
        if len(self._candidates) > 1 and (slow or freed or self._steps_since_trial >= self._pause_steps):
            self._begin_trial()

    def _try(self, pace: float) -> None:
        first = self.current not in self._paces
        self._paces[self.current] = min(pace, self._paces.get(self.current, math.inf))
        if first and pace <= _HOPELESS_RATIO * min(self._paces.values()):
            return
        self._untried.remove(self.current)
        if self._untried:
            self.current = self._untried[0]
            return
        self.current = min(self._paces, key=self._paces.__getitem__)
        self._pause_steps = 2 * self._pause_steps if self.current == self._chosen else _STEPS_BETWEEN_TRIALS
        self._chosen = self.current

    def _begin_trial(self) -> None:
        """Try the current count first: it is likely the best again, which makes the others' trials short."""
        self._untried = sorted(self._candidates, key=lambda count: count != self.current)
        self._paces = {}
        self._steps_since_trial = self._slow_steps = self._freed_steps = 0
