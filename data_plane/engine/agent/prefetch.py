"""Prefetches adapters to this replica before requests need them: from hints, and for pins.

Prefetching is best effort: it is bounded, it yields to requests, and when it fails the next request is only slower.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import aiohttp
import structlog

from data_plane.engine.agent import metrics
from data_plane.engine.agent.control_client import ControlClient, ControlRequestFailed
from data_plane.engine.residency import EngineResidency
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()

_REMEMBERED_MAX: Final = 10_000
Reason = Literal["flip", "listing", "pin"]


class Prefetcher:
    """A bounded queue of engine names, of which ``run_once`` prefetches one at a time. ``residency`` returns the
    engine's own table, ``is_busy`` whether requests wait. Requests use adapters only in slots: an adapter counts as
    used when it is loaded into one and while it is there.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        control: ControlClient,
        *,
        residency: Callable[[], EngineResidency | None],
        is_busy: Callable[[], bool],
        is_revoked: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._control = control
        self._residency = residency
        self._is_busy = is_busy
        self._is_revoked = is_revoked
        self._queue: OrderedDict[str, tuple[Reason, str | None]] = OrderedDict()
        self._unused: OrderedDict[str, float] = OrderedDict()  # prefetched and not used yet
        self._tried: OrderedDict[str, float] = OrderedDict()  # last attempt, on the monotonic clock
        self._used: dict[str, float] = {}  # last use of the adapters in memory, as ``_unused`` in Unix seconds

    def enqueue(self, name: str, reason: Reason, *, tenant: str | None) -> None:
        """Queue a prefetch of this adapter of a tenant (None for unknown). A full queue drops its oldest entry. An
        adapter that was tried less than ``prefetch_retry_after_s`` ago is skipped, unless an alias flip announces it.
        """
        again_s = self._settings.prefetch_retry_after_s
        recent = reason != "flip" and time.monotonic() - self._tried.get(name, -again_s) < again_s
        if recent or name in self._queue or self._is_revoked(name):
            return
        self._queue[name] = (reason, tenant)
        if len(self._queue) > self._settings.prefetch_queue_max:
            self._queue.popitem(last=False)
            metrics.PREFETCHES_SKIPPED.labels("queue_full").inc()

    async def run_once(self) -> None:
        """Prefetch the next adapter, unless requests wait. Record the outcome of earlier prefetches."""
        table = self._residency()
        if table is not None:
            self._record_uses(table)
        if table is None or not self._queue or self._is_busy():
            return
        name, (reason, tenant) = self._queue.popitem(last=False)
        if name in table.in_memory or name in table.slots or self._is_revoked(name):
            metrics.PREFETCHES_SKIPPED.labels("resident").inc()
            return
        self._record_attempt(name)
        evicts = not has_room(table, memory_adapters=self._settings.memory_adapters, was_idle=self._was_idle)
        began = time.monotonic()
        try:
            # Without room in memory, the disk is still faster than the store.
            found = await self._control.prefetch(
                name,
                "disk" if evicts and reason != "pin" else "memory",
                tenant=tenant,
                timeout_s=self._settings.prefetch_timeout_s,
            )
        except (ControlRequestFailed, aiohttp.ClientError, TimeoutError) as error:
            metrics.PREFETCHES_SKIPPED.labels("failed").inc()
            _log.info("prefetch failed", adapter=name, reason=reason, error=repr(error))
            return
        metrics.PREFETCHES.labels(reason, found.tier).inc()
        metrics.PREFETCH_SECONDS.observe(time.monotonic() - began)
        if reason != "pin":  # a pinned adapter is in memory because of its plan, whether it is used or not
            self._unused[name] = time.time()
            while len(self._unused) > _REMEMBERED_MAX:
                self._unused.popitem(last=False)

    def _record_attempt(self, name: str) -> None:
        self._tried[name] = time.monotonic()
        self._tried.move_to_end(name)
        while len(self._tried) > _REMEMBERED_MAX:
            self._tried.popitem(last=False)

    def _was_idle(self, name: str) -> bool:
        return time.time() - self._used.get(name, 0) >= self._settings.prefetch_evict_idle_s

    def _record_uses(self, table: EngineResidency) -> None:
        """Note which adapters are in use, and count which prefetched ones were used in time."""
        now = time.time()
        for load in table.loads:
            if load.kind == "slot":
                self._used[load.name] = max(load.at_ms / 1000, self._used.get(load.name, 0))
        self._used |= dict.fromkeys((name for name in table.slots if name is not None), now)
        for name, at in list(self._unused.items()):
            if self._used.get(name, 0) >= at:
                outcome = "useful"
            elif now - at > self._settings.prefetch_useful_within_s:
                outcome = "wasted"
            else:
                continue
            del self._unused[name]
            metrics.PREFETCH_OUTCOMES.labels(outcome).inc()
        held = table.in_memory
        self._used = {name: at for name, at in self._used.items() if name in held}


def has_room(table: EngineResidency, *, memory_adapters: int, was_idle: Callable[[str], bool]) -> bool:
    """Whether one more adapter fits in host memory, or replaces only an adapter that is not pinned, in no slot, and not
    used recently: the adapter that the engine would evict.
    """
    if len(table.in_memory) < memory_adapters:
        return True
    spared = {*table.pinned, *(name for name in table.slots if name is not None), *table.staged}
    victim = next((name for name in table.memory if name not in spared), None)
    return victim is not None and was_idle(victim)
