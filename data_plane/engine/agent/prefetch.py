"""Brings adapters to this replica before they are asked for: what hints announce, what a forecast expects, what is
pinned. Everything here is advice: it is bounded, gives way to requests, and when it fails the next request is slower.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import aiohttp
import structlog

from data_plane.engine.agent import metrics
from data_plane.engine.agent.control_client import ControlClient, ControlRequestFailed
from data_plane.engine.residency import EngineResidency
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()

Reason = Literal["flip", "listing", "forecast", "pin"]


class Prefetcher:
    """A bounded queue of names, worked off one at a time by ``step``. ``residency`` is the engine's own table,
    ``last_use`` when an adapter was asked for last (Unix seconds, None for unknown), ``is_busy`` whether requests wait.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        door: ControlClient,
        *,
        residency: Callable[[], EngineResidency | None],
        last_use: Callable[[str], float | None],
        is_busy: Callable[[], bool],
        refused: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._door = door
        self._residency = residency
        self._last_use = last_use
        self._is_busy = is_busy
        self._refused = refused
        self._queue: OrderedDict[str, tuple[Reason, str | None]] = OrderedDict()
        self._unjudged: OrderedDict[str, float] = OrderedDict()  # prefetched, not yet used: when, in Unix seconds
        self._tried: OrderedDict[str, float] = OrderedDict()  # when last, by the monotonic clock

    def ask(self, name: str, reason: Reason, *, tenant: str | None) -> None:
        """Prefetch this adapter of a tenant (None for unknown) when there is time. A full queue forgets its oldest;
        what was tried a moment ago, and is not announced by a flip, is not tried again.
        """
        again_s = self._settings.prefetch_retry_after_s
        recent = reason != "flip" and time.monotonic() - self._tried.get(name, -again_s) < again_s
        if recent or name in self._queue or self._refused(name):
            return
        self._queue[name] = (reason, tenant)
        if len(self._queue) > self._settings.prefetch_queue_max:
            self._queue.popitem(last=False)
            metrics.PREFETCHES_SKIPPED.labels("queue_full").inc()

    async def step(self) -> None:
        """Prefetch the next one, unless requests wait. Judge those of before."""
        self._judge()
        table = self._residency()
        if table is None or not self._queue or self._is_busy():
            return
        name, (reason, tenant) = self._queue.popitem(last=False)
        if name in table.in_memory or name in table.slots or self._refused(name):
            metrics.PREFETCHES_SKIPPED.labels("resident").inc()
            return
        self._note_try(name)
        evicts = not has_room(table, memory_adapters=self._settings.memory_adapters, was_idle=self._was_idle)
        began = time.monotonic()
        try:
            # Without room in memory the disk is still nearer than the store.
            found = await self._door.prefetch(
                name,
                "disk" if evicts and reason != "pin" else "memory",
                tenant=tenant,
                timeout_s=self._settings.prefetch_timeout_s,
            )
        except (ControlRequestFailed, aiohttp.ClientError, TimeoutError) as error:
            metrics.PREFETCHES_SKIPPED.labels("failed").inc()
            _log.info("adapter could not be prefetched", adapter=name, reason=reason, error=repr(error))
            return
        metrics.PREFETCHES.labels(reason, found.tier).inc()
        metrics.PREFETCH_SECONDS.observe(time.monotonic() - began)
        if reason != "pin":  # those are kept for what the plan says, not for a guess
            self._unjudged[name] = time.time()
            while len(self._unjudged) > self._settings.forecast_adapters_max:
                self._unjudged.popitem(last=False)

    def _note_try(self, name: str) -> None:
        self._tried[name] = time.monotonic()
        self._tried.move_to_end(name)
        while len(self._tried) > self._settings.forecast_adapters_max:
            self._tried.popitem(last=False)

    def _was_idle(self, name: str) -> bool:
        used_at = self._last_use(name)
        return used_at is None or time.time() - used_at >= self._settings.prefetch_evict_idle_s

    def _judge(self) -> None:
        """Count which prefetched adapters were used in time."""
        for name, at in list(self._unjudged.items()):
            used_at = self._last_use(name)
            if used_at is not None and used_at >= at:
                verdict = "useful"
            elif time.time() - at > self._settings.prefetch_useful_within_s:
                verdict = "wasted"
            else:
                continue
            del self._unjudged[name]
            metrics.PREFETCH_JUDGED.labels(verdict).inc()


def has_room(table: EngineResidency, *, memory_adapters: int, was_idle: Callable[[str], bool]) -> bool:
    """Whether one more adapter fits host memory, or takes only the place of one that is not pinned, in no slot, and was
    not used lately: the one that the engine would evict.
    """
    if len(table.in_memory) < memory_adapters:
        return True
    spared = {*table.pinned, *(name for name in table.slots if name is not None), *table.staged}
    victim = next((name for name in table.memory if name not in spared), None)
    return victim is not None and was_idle(victim)
