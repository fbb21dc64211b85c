"""Keeps the adapters that plans pin for this replica's placement group in host memory: sends the set to the engine and
prefetches what is missing.

Fails open: while Redis is unavailable the pinned set does not change; an adapter that loses its pin is only slower.
"""

from collections.abc import Callable
from typing import Final

from core.contracts.routes import Pin
from data_plane.engine.agent import metrics
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.agent.live_replicas import LiveReplicas, in_placement_group
from data_plane.engine.agent.prefetch import Prefetcher
from data_plane.engine.agent.snapshot_reader import SnapshotReader, SnapshotSource
from data_plane.engine.residency import EngineResidency
from data_plane.engine.settings import ReplicaSettings

_SHARE_OF_MEMORY: Final = 2  # one half; the other half serves all other adapters


class PinnedAdapters:
    """``run_once`` is repeated. At most half of host memory is pinned; beyond that, the first by name are kept."""

    def __init__(
        self,
        settings: ReplicaSettings,
        published: SnapshotSource,
        control: ControlClient,
        replicas: LiveReplicas,
        prefetcher: Prefetcher,
        *,
        residency: Callable[[], EngineResidency | None],
        is_revoked: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._control = control
        self._replicas = replicas
        self._prefetcher = prefetcher
        self._residency = residency
        self._is_revoked = is_revoked
        self._published = SnapshotReader(published, "pins", Pin)
        self._pins: dict[str, Pin] = {}
        self._acknowledged: list[str] = []

    async def run_once(self) -> None:
        """Read the pins, send a changed set to the engine, and queue prefetches of what is not in memory. Raises
        SnapshotMissing, redis.RedisError, or what ControlClient raises.
        """
        published = await self._published.changed()
        if published is not None:
            self._pins = published
        names = await self._names_of_this_replica()
        if names != self._acknowledged:
            await self._control.pin(names)
            self._acknowledged = names
        table = self._residency()
        for name in names:
            if table is not None and name in self._pins and name not in table.in_memory:
                self._prefetcher.enqueue(name, "pin", tenant=self._pins[name].tenant_id)

    async def _names_of_this_replica(self) -> list[str]:
        live = await self._replicas.live()
        me = next((replica for replica in live if replica.id == self._settings.replica_id), None)
        if me is None:  # draining, or not published yet: keep the current set
            return self._acknowledged
        names = sorted(
            pin.engine_name
            for pin in self._pins.values()
            if pin.base_model == self._settings.base_model
            and in_placement_group(pin.rank_class, me, live)
            and not self._is_revoked(pin.engine_name)
        )
        kept = names[: self._settings.memory_adapters // _SHARE_OF_MEMORY]
        metrics.PINNED.set(len(kept))
        metrics.PINS_DROPPED.set(len(names) - len(kept))
        return kept
