"""Counts the requests and prefetches of each adapter that the engine runs now, so that an unload can wait for them or
abort them.

Used on one event loop. Nothing here calls the engine.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class InFlightRequests:
    """Running requests and prefetches by engine name, with the ids that vLLM needs to abort the requests."""

    def __init__(self) -> None:
        self._running: dict[str, dict[object, str | None]] = {}
        self._idle: dict[str, asyncio.Event] = {}

    @contextmanager
    def track(self, name: str, request_id: str | None) -> Iterator[None]:
        """Count a request within the block. A prefetch has no id: an unload waits for it and cannot abort it."""
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
        """The request ids of one adapter."""
        return frozenset(each for each in self._running.get(name, {}).values() if each is not None)

    async def wait_idle(self, name: str, timeout_s: float) -> bool:
        """Wait until nothing of the adapter runs. False when something still runs after ``timeout_s``."""
        if name not in self._running:
            return True
        idle = self._idle.setdefault(name, asyncio.Event())
        try:
            await asyncio.wait_for(idle.wait(), timeout_s)
        except TimeoutError:
            return name not in self._running
        return True
