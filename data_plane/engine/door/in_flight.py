"""Which requests of which adapter the engine has at this moment, so that an unload can wait for them or end them.

One event loop; nothing here waits for the engine.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class InFlight:
    """Requests by engine name, with the ids under which vLLM can abort them."""

    def __init__(self) -> None:
        self._requests: dict[str, set[str]] = {}
        self._idle: dict[str, asyncio.Event] = {}

    @contextmanager
    def request(self, name: str, request_id: str) -> Iterator[None]:
        """The request counts within the block."""
        self._requests.setdefault(name, set()).add(request_id)
        try:
            yield
        finally:
            ids = self._requests[name]
            ids.remove(request_id)
            if not ids:
                del self._requests[name]
                if (idle := self._idle.pop(name, None)) is not None:
                    idle.set()

    @property
    def names(self) -> Collection[str]:
        """Adapters with at least one request."""
        return self._requests.keys()

    def ids(self, name: str) -> frozenset[str]:
        """The requests of one adapter."""
        return frozenset(self._requests.get(name, ()))

    async def wait_idle(self, name: str, timeout_s: float) -> bool:
        """Until the adapter has no request; False when it still has some after ``timeout_s``."""
        if name not in self._requests:
            return True
        idle = self._idle.setdefault(name, asyncio.Event())
        try:
            await asyncio.wait_for(idle.wait(), timeout_s)
        except TimeoutError:
            return name not in self._requests
        return True
