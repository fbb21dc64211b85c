"""Drops idle adapters, which are in no tier above the disk and have no request: their names leave vLLM's front end, and
their leases on the disk cache are released.

Without it vLLM keeps every name that it ever resolved, and the disk cache every digest that it ever handed out.
"""

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import structlog

from data_plane.engine.middleware.adapter_requests import AdapterRequests
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.residency import EngineResidency

_log = structlog.get_logger()


def idle_names(known: Iterable[str], table: EngineResidency, in_use: AbstractSet[str]) -> set[str]:
    """The names of ``known`` that are in no tier above the disk and that no request uses."""
    return set(known) - table.in_memory - set(table.slots) - in_use


class IdleAdapterSweep:
    """A sweep every ``idle_adapter_sweep_interval_s`` while the engine runs."""

    def __init__(self, adapters: AdapterRequests, front_end: VllmFrontend) -> None:
        self._adapters = adapters
        self._front_end = front_end

    def run_once(self) -> set[str]:
        """Drop idle adapters and return their names. There is no await in it, so no request can start in between."""
        table = self._adapters.residency.now()
        if table is None:
            return set()
        in_use = set(self._adapters.in_flight.names) | self._adapters.loader.names
        idle = idle_names(self._front_end.names | self._adapters.disk.names, table, in_use)
        for name in idle:
            self._front_end.evict(name)
            self._adapters.disk.release(name)
        return idle

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(self._adapters.settings.idle_adapter_sweep_interval_s)
            try:
                self.run_once()
            except OSError as error:  # the folders may be readable again at the next sweep
                _log.warning("idle adapter sweep failed", reason=error.strerror)
