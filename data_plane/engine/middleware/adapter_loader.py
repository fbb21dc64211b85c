"""Loads an adapter into host memory before vLLM gets the request that needs it, and keeps it there while requests use
it.

``disk_leases`` downloads from the store to disk, the worker's loader reads from disk to memory. This module decides
their order, limits how long a request waits, and guarantees that requests never use more adapters at once than host
memory holds. Parallel loads are limited in total and for each tenant. An adapter that is already in host memory does
not count, whatever the store does. Fails closed: a request whose adapter is not acquired in the worker never reaches
vLLM.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from adapters.cache.errors import AdapterStillLoading
from core.contracts.replicas import Tier
from core.errors import Unavailable
from data_plane.engine.middleware.disk_leases import DiskLeases
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters
from data_plane.engine.middleware.worker_client import WorkerClient
from data_plane.engine.residency import ResidencyReader
from data_plane.engine.settings import MiddlewareSettings

_log = structlog.get_logger()
_LOAD_ATTEMPTS = 2  # before the second one the disk cache verifies every byte and repairs what is damaged


class AdapterUnusable(Unavailable):
    """The engine cannot read the adapter, although its bytes are the validated ones."""

    default_code = "adapter_unusable"


@dataclass(frozen=True)
class LoadOutcome:
    """The tier in which an adapter was when a request arrived, and how long the request waited for it."""

    tier: Tier
    load_ms: int


class _AdapterUse:
    """One adapter in use. ``loading`` lets one request load it while other requests for the same adapter wait.
    ``acquired`` means that it counts against the capacity of host memory, ``ready`` that it is in host memory.
    """

    def __init__(self) -> None:
        self.loading = asyncio.Lock()
        self.users = 0
        self.acquired = False
        self.ready = False


class AdapterLoader:
    """Which adapters are in use in host memory. Used on one event loop."""

    def __init__(
        self,
        settings: MiddlewareSettings,
        revoked: RevokedAdapters,
        disk: DiskLeases,
        worker: WorkerClient,
        residency: ResidencyReader,
    ) -> None:
        self._settings = settings
        self._revoked = revoked
        self._disk = disk
        self._worker = worker
        self._residency = residency
        self._uses: dict[str, _AdapterUse] = {}
        self._memory_capacity = asyncio.Semaphore(settings.memory_adapters)
        self._loads: Counter[str] = Counter()  # by tenant

    @property
    def names(self) -> frozenset[str]:
        """Adapters that are in use or being loaded."""
        return frozenset(self._uses)

    @asynccontextmanager
    async def loaded(self, name: str, tenant: str | None) -> AsyncIterator[LoadOutcome]:
        """Load the adapter into host memory and keep it there within the block.

        Raises ``AdapterStillLoading`` when the load takes longer than a request may wait or too many loads run,
        ``NotFound``
        for an adapter that is not stored, revoked or of another base model, another ``Unavailable`` when a component
        below fails.
        """
        use = self._begin_use(name)
        try:
            yield await self._ensure_ready(name, tenant, use)
        finally:
            self._end_use(name, use)

    def mark_evicted(self, name: str) -> None:
        """Record that the adapter was evicted although requests still use it: the next request loads it again."""
        if (use := self._uses.get(name)) is not None:
            use.ready = False

    def _begin_use(self, name: str) -> _AdapterUse:
        use = self._uses.setdefault(name, _AdapterUse())
        use.users += 1
        return use

    def _end_use(self, name: str, use: _AdapterUse) -> None:
        use.users -= 1
        if use.users == 0:
            del self._uses[name]
            if use.acquired:
                self._release(name, use)

    async def _ensure_ready(self, name: str, tenant: str | None, use: _AdapterUse) -> LoadOutcome:
        started = time.monotonic()
        if use.ready:
            return LoadOutcome(self._tier_of_acquired(name), 0)
        try:
            async with asyncio.timeout(self._settings.adapter_load_deadline_s) as deadline:
                async with use.loading:
                    tier = self._tier_of_acquired(name) if use.ready else await self._load(name, tenant, use)
                    use.ready = True
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise AdapterStillLoading(
                "the adapter is still being loaded; retry the request", eta_s=1, retry_after_s=1
            ) from error
        return LoadOutcome(tier, round((time.monotonic() - started) * 1000))

    async def _load(self, name: str, tenant: str | None, use: _AdapterUse) -> Tier:
        with ExitStack() as permits:
            needs_permit = not self._is_resident(name)
            if needs_permit:
                permits.enter_context(self._load_permit(name, tenant))
            if (tier := await self._acquire(name, use)) is not None:
                return tier
            self._release(name, use)  # a download can be slow and must not keep other adapters out of host memory
            if not needs_permit:  # it was evicted after the residency check
                permits.enter_context(self._load_permit(name, tenant))
            return await self._load_from_disk(name, tenant, use)

    @contextmanager
    def _load_permit(self, name: str, tenant: str | None) -> Iterator[None]:
        """Count as one of the parallel loads within the block. Raises ``AdapterStillLoading`` at a limit."""
        owner, limit = name if tenant is None else tenant, self._settings.adapter_loads_per_tenant_max
        if self._loads[owner] >= limit:
            raise AdapterStillLoading(
                f"{limit} adapters of this tenant are being loaded already; retry the request", eta_s=1, retry_after_s=1
            )
        if self._loads.total() >= self._settings.adapter_loads_max:
            raise AdapterStillLoading(
                "this engine is loading too many adapters already; retry the request", eta_s=1, retry_after_s=1
            )
        self._loads[owner] += 1
        try:
            yield
        finally:
            self._loads[owner] -= 1
            if not self._loads[owner]:
                del self._loads[owner]

    async def _load_from_disk(self, name: str, tenant: str | None, use: _AdapterUse) -> Tier:
        """Load from disk into host memory, after a download from the store if need be. The tier is the store only for
        the request that begins the download: cold loads are charged by it.
        """
        on_disk = await self._disk.has(name) or self._disk.is_coming(name)
        tier: Tier = "disk" if on_disk else "store"
        for attempt in range(_LOAD_ATTEMPTS):
            folder = await self._disk.fetch(name, tenant)
            if (already := await self._acquire(name, use)) is not None:
                return already
            if await self._load_in_worker(name, folder, use):
                return tier
            self._revoked.require_not_revoked(name)  # the worker does not load a revoked adapter either
            _log.warning("adapter load failed; verifying its files", adapter=name, attempt=attempt)
            self._disk.mark_suspect(folder)
        raise AdapterUnusable(f"the engine cannot load adapter {name}; see the engine's log", retry_after_s=5)

    async def _load_in_worker(self, name: str, folder: Path, use: _AdapterUse) -> bool:
        loaded = False
        try:
            loaded = (await self._worker.load(name, folder)).loaded
        finally:
            if not loaded:
                self._release(name, use)
        return loaded

    async def _acquire(self, name: str, use: _AdapterUse) -> Tier | None:
        if not use.acquired:
            await self._memory_capacity.acquire()
            use.acquired = True
        try:
            return await self._worker.acquire(name)
        except BaseException:  # also a cancelled request: only this code knows of its share of host memory
            self._release(name, use)
            raise

    def _release(self, name: str, use: _AdapterUse) -> None:
        use.acquired = False
        self._memory_capacity.release()
        self._worker.release(name)

    def _is_resident(self, name: str) -> bool:
        table = self._residency.now()
        return table is not None and (name in table.slots or name in table.in_memory)

    def _tier_of_acquired(self, name: str) -> Tier:
        table = self._residency.now()
        return "slot" if table is not None and name in table.slots else "memory"
