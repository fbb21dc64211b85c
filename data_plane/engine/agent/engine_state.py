"""The engine's state as its agent last observed it: lifecycle state, queue length and last sign of progress.

Only the agent writes these objects; the background tasks read ``EngineState``. Nothing here talks to the engine.
"""

import asyncio
import time
from dataclasses import dataclass, field

from core.contracts.costs import WindowState
from data_plane.engine.agent.engine_client import EngineMetrics


@dataclass(slots=True)
class EngineState:
    """``waiting_requests`` is the engine's queue length at the last scrape. ``stopping`` is set when the agent must
    stop, ``fenced`` for good once another agent has the replica's id.
    """

    state: WindowState = "starting"
    waiting_requests: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    fenced: bool = False

    @property
    def takes_jobs(self) -> bool:
        """Whether the engine serves requests and is not about to stop."""
        return self.state == "ready" and not self.stopping.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether requests wait in the engine's queue."""
        return self.waiting_requests > 0


class EngineProgress:
    """When the engine last showed, by its own counters, that it works. ``last_at_s`` is a monotonic time.

    A busy engine moves its counters; an engine that hangs moves none. A probe therefore needs only a short timeout: a
    probe that waits in the queue while other requests' tokens are counted has not failed.

    vLLM 0.32 counts a prompt when its first token is generated. A long prompt takes many steps before that, and only
    the fill level of the KV cache changes meanwhile. A fill level counts as progress only when it is above every level
    since the last counted token: pages that are allocated and freed without a token are not progress.
    """

    def __init__(self) -> None:
        self.last_at_s = time.monotonic()
        self._tokens = 0
        self._kv_used = 0.0

    def record_scrape(self, engine: EngineMetrics) -> None:
        """Compare this scrape with the previous one."""
        tokens = engine.prompt_tokens + engine.generation_tokens
        if tokens == self._tokens and engine.kv_used <= self._kv_used:
            return
        self._tokens, self._kv_used = tokens, engine.kv_used
        self.last_at_s = time.monotonic()

    def record_probe(self) -> None:
        """The engine answered a probe."""
        self.last_at_s = time.monotonic()
