"""Where adapters are on this replica, from the engine's residency table and the cache folder, with a version that
counts the changes; and the metrics of what each load cost.

``status_publisher`` publishes it.
"""

import os
import time
from pathlib import Path

from adapters.manifest import is_digest
from core.contracts.replicas import Residency
from data_plane.engine.agent import metrics
from data_plane.engine.residency import EngineResidency, ResidencyReader

_TICK_NS = 100_000_000


class ResidencyWatch:
    """``scan`` reads again; ``current`` is the last result, None before the engine has a table."""

    def __init__(self, run_dir: Path, cache_dir: Path, *, replica_id: str, boot_id: str) -> None:
        self._reader = ResidencyReader(run_dir)
        self._disk = DigestsOnDisk(cache_dir)
        self._replica_id = replica_id
        self._boot_id = boot_id
        self._loads_seen = 0
        self._evictions_seen = (0, 0)
        self._engine_seen = 0  # start time of the engine whose loads were counted
        self.current: Residency | None = None

    @property
    def table(self) -> EngineResidency | None:
        """The engine's own table as it is now."""
        return self._reader.now()

    @property
    def version(self) -> int:
        """The version of ``current``; 0 while there is none."""
        return 0 if self.current is None else self.current.version

    async def scan(self) -> None:
        """Read the table and the folder, and count changes."""
        table = self._reader.now()
        if table is None:
            return
        self._count(table)
        disk = self._disk.now()
        found = Residency(
            replica_id=self._replica_id,
            boot_id=self._boot_id,
            version=self.version,
            slots=table.slots,
            memory=tuple(sorted(table.in_memory)),
            disk=disk,
        )
        if found != self.current:
            self.current = Residency(
                replica_id=found.replica_id,
                boot_id=found.boot_id,
                version=found.version + 1,
                slots=found.slots,
                memory=found.memory,
                disk=found.disk,
            )
            metrics.RESIDENCY_CHANGES.inc()
            metrics.RESIDENT.labels("slot").set(sum(name is not None for name in found.slots))
            metrics.RESIDENT.labels("memory").set(len(found.memory))
            metrics.RESIDENT.labels("disk").set(len(found.disk))

    def _count(self, table: EngineResidency) -> None:
        if table.started_at_ms != self._engine_seen:
            self._engine_seen, self._loads_seen, self._evictions_seen = table.started_at_ms, 0, (0, 0)
        for load in table.loads:
            if load.seq > self._loads_seen:
                metrics.LOAD_SECONDS.labels(load.kind).observe(load.ms / 1000)
                if load.in_step:
                    metrics.STALL_SECONDS.labels(load.kind).observe(load.ms / 1000)
        if table.loads:
            first, last = table.loads[0].seq, table.loads[-1].seq
            metrics.LOADS_UNSEEN.inc(max(0, first - self._loads_seen - 1))
            self._loads_seen = max(self._loads_seen, last)
        now = (table.slot_evictions, table.memory_evictions)
        for tier, before, after in zip(("slot", "memory"), self._evictions_seen, now, strict=True):
            metrics.EVICTIONS.labels(tier).inc(max(0, after - before))
        self._evictions_seen = now


class DigestsOnDisk:
    """The digests with complete files in the cache folder. The folder is listed again only when it has changed:
    adapters are added and removed there by renames, which change its modification time.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._seen_ns = -1
        self._digests: tuple[str, ...] = ()

    def now(self) -> tuple[str, ...]:
        """The digests, sorted; empty when there is no folder."""
        try:
            changed_ns = self._cache_dir.stat().st_mtime_ns
            if changed_ns != self._seen_ns:
                with os.scandir(self._cache_dir) as entries:
                    self._digests = tuple(sorted(entry.name for entry in entries if is_digest(entry.name)))
                # A second change within one clock tick does not change the time, so a recent time is not trusted yet.
                self._seen_ns = changed_ns if time.time_ns() - changed_ns > _TICK_NS else -1
        except FileNotFoundError:
            self._seen_ns, self._digests = -1, ()
        return self._digests
