"""How fast a queue drained over the last seconds in which a request waited, and so how long a new request would wait.
Pure: times come in, in seconds of a monotonic clock.
"""

import math
from typing import Final

_WINDOW_S: Final = 5.0
_OBSERVED_S: Final = 1.0  # with less observation there is no estimate
_MARGIN: Final = 2.0
_STALE_S: Final = 60.0  # after an empty queue for this long, older observations are dropped


class DrainRate:
    """Tokens taken from one queue for each second in which it was not empty; older seconds count exponentially less."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._requests = 0.0
        self._seconds = 0.0
        self._since: float | None = None  # the queue is not empty, and is accounted for up to here
        self._ended = 0.0

    def begin(self, now_s: float) -> None:
        """The queue is not empty any longer."""
        if self._since is None:
            if now_s - self._ended > _STALE_S:
                self._tokens = self._requests = self._seconds = 0.0
            self._since = now_s

    def end(self, now_s: float) -> None:
        """The queue is empty."""
        self._advance(now_s)
        self._since, self._ended = None, now_s

    def record(self, tokens: int, now_s: float) -> None:
        """A request of this many tokens was taken from the queue; a negative number is a request that was put back."""
        self._advance(now_s)
        self._tokens += tokens
        self._requests += math.copysign(1, tokens)

    def wait_s(self, tokens_ahead: float, now_s: float) -> float | None:
        """Seconds until this many tokens are taken; None while too little was observed."""
        self._advance(now_s)
        if self._seconds < _OBSERVED_S or self._tokens <= 0:
            return None
        return tokens_ahead * self._seconds / self._tokens

    def wait_s_upper_bound(self, tokens_ahead: float, now_s: float) -> float | None:
        """``wait_s`` with a margin of twice the standard deviation. The number of requests taken in a time is treated
        as Poisson-distributed, so its deviation is the root of the number, and a longer wait is rare.
        """
        wait_s = self.wait_s(tokens_ahead, now_s)
        if wait_s is None or self._requests <= 0:
            return wait_s
        return wait_s + _MARGIN * math.sqrt(wait_s * self._seconds / self._requests)

    def _advance(self, now_s: float) -> None:
        if self._since is None:
            return
        decay = math.exp(-(now_s - self._since) / _WINDOW_S)
        self._since = now_s
        self._tokens *= decay
        self._requests *= decay
        self._seconds = self._seconds * decay + _WINDOW_S * (1 - decay)
