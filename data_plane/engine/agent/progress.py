"""When an engine last showed that it works, by its own counters: a busy one moves them, one that hangs moves none.

So a probe need not be waited for long: one that waits its turn while others' tokens come has not failed.
"""

import time

from data_plane.engine.agent.engine_client import EngineMetrics


class Progress:
    """``at``, a monotonic time, is when tokens were last counted, or a prompt took more of the KV cache.

    vLLM 0.32 counts a prompt when its first token comes. A long one is read in many steps before, and all that moves is
    how full the cache is. Only what is beyond all since the last token counts, so that pages which come and go without
    a token are no progress.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()
        self._tokens = 0
        self._kv_used = 0.0

    def saw(self, engine: EngineMetrics) -> None:
        """Compare with the scrape before."""
        tokens = engine.prompt_tokens + engine.generation_tokens
        if tokens == self._tokens and engine.kv_used <= self._kv_used:
            return
        self._tokens, self._kv_used = tokens, engine.kv_used
        self.at = time.monotonic()

    def generated(self) -> None:
        """It has answered a probe."""
        self.at = time.monotonic()
