"""How one engine is doing, as its agent last found it. The agent alone writes it; the side tasks read it."""

import asyncio
from dataclasses import dataclass, field

from core.contracts.replicas import ReplicaState


@dataclass(slots=True)
class Condition:
    """``waiting_requests`` waited for their turn at the last scrape; ``stopping`` is set once the agent should end."""

    state: ReplicaState = "starting"
    waiting_requests: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def takes_jobs(self) -> bool:
        """Whether the engine serves, and is to go on serving."""
        return self.state == "ready" and not self.stopping.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether it has more to do than it can do at once."""
        return self.waiting_requests > 0
