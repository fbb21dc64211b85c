"""How many requests may run on the engine beside batch requests, so that batch slows others' tokens down only so far.

With each running request a step of the engine takes longer, and so does each token of all others. Free KV pages do not
show that. A token's time grows about in proportion to the running requests, so the limit follows from both as they are.
"""

from typing import Final

from data_plane.engine.agent.engine_client import EngineMetrics

_SLOWDOWN_MAX: Final = 1.5
"""Tokens may take so many times as long as they did when they were fastest, where that is more than the setting."""
_GROWTH_MAX: Final = 2.0
"""The limit is at most this many times the running requests, and two more: nothing was measured beyond that."""


class BatchLimit:
    """The limit of an engine of so many sequences. ``token_s_max`` is a mean time of a token that is fast enough."""

    def __init__(self, sequences: int, token_s_max: float) -> None:
        self.requests = self._sequences = sequences
        self._token_s_max = token_s_max
        self._fastest_s = float("inf")
        self._seen: tuple[EngineMetrics, float] | None = None

    def observe(self, engine: EngineMetrics, now_s: float) -> None:
        """Adapt the limit to the tokens since the last report. Without new tokens it stays. The engine's times between
        tokens, summed over all requests, are the time in which one more request ran.
        """
        before, before_s = self._seen or (engine, now_s)
        self._seen = engine, now_s
        tokens, tokens_s = engine.token_gaps - before.token_gaps, engine.token_gaps_s - before.token_gaps_s
        if tokens <= 0 or now_s <= before_s:
            return
        token_s, running = tokens_s / tokens, tokens_s / (now_s - before_s)
        self._fastest_s = min(self._fastest_s, token_s)
        allowed_s = max(self._token_s_max, _SLOWDOWN_MAX * self._fastest_s) - self._fastest_s
        most = _GROWTH_MAX * running + 2
        fits = running * allowed_s / (token_s - self._fastest_s) if token_s > self._fastest_s else most
        self.requests = max(1, min(self._sequences, int(min(fits, most))))
