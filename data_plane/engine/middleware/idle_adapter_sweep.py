"""What the front end and the disk may forget: adapters that are in no tier above the disk and that nobody asks for.

vLLM keeps every name it has ever resolved, and the disk cache every digest it has handed out.
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
    """Those of ``known`` that no tier above the disk has and no request uses."""
    return set(known) - table.in_memory - set(table.slots) - in_use


class IdleAdapterSweep:
    """Looks every few seconds."""

    def __init__(self, door: AdapterRequests, front_end: VllmFrontend) -> None:
        self._door = door
        self._front_end = front_end

    def look(self) -> set[str]:
        """Forget what may be forgotten; returns it. Nothing is awaited, so that no request comes in between."""
        table = self._door.residency.now()
        if table is None:
            return set()
        in_use = set(self._door.in_flight.names) | self._door.warmer.names
        idle = idle_names(self._front_end.names | self._door.disk.names, table, in_use)
        for name in idle:
            self._front_end.forget(name)
            self._door.disk.release(name)
        return idle

    async def run(self) -> None:
        """For as long as the engine lives."""
        while True:
            await asyncio.sleep(self._door.settings.idle_adapter_sweep_interval_s)
            try:
                self.look()
            except OSError as error:  # the next look may find the folders again
                _log.warning("cannot look at what may be forgotten", reason=error.strerror)
