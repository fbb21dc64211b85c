"""Which requests and prefetches of which adapter the engine has at this moment, so that an unload can wait for them or
end them.

One event loop; nothing here waits for the engine.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class InFlightRequests:
    """What runs by engine name, with the ids under which vLLM can abort the requests among it."""

    def __init__(self) -> None:
        self._running: dict[str, dict[object, str | None]] = {}
        self._idle: dict[str, asyncio.Event] = {}

    @contextmanager
    def request(self, name: str, request_id: str | None) -> Iterator[None]:
        """It counts within the block. A prefetch has no id: it is waited for, and ends by itself."""
        running = object()
        self._running.setdefault(name, {})[running] = request_id
        try:
            yield
        finally:
            others = self._running[name]
            del others[running]
            if not others:
                del self._running[name]
                if (idle := self._idle.pop(name, None)) is not None:
                    idle.set()

    @property
    def names(self) -> Collection[str]:
        """Adapters with at least one request or prefetch."""
        return self._running.keys()

    def ids(self, name: str) -> frozenset[str]:
        """The requests of one adapter."""
        return frozenset(each for each in self._running.get(name, {}).values() if each is not None)

    async def wait_idle(self, name: str, timeout_s: float) -> bool:
        """Until nothing of the adapter runs; False when something still does after ``timeout_s``."""
        if name not in self._running:
            return True
        idle = self._idle.setdefault(name, asyncio.Event())
        try:
            await asyncio.wait_for(idle.wait(), timeout_s)
        except TimeoutError:
            return name not in self._running
        return True
