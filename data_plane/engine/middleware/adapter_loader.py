"""Brings an adapter into host memory before vLLM hears of the request that needs it, and keeps it there meanwhile.

Store to disk is ``disk_holds``, disk to memory the worker's loader; here are their order, the request's patience
and the promise that no more adapters are in use at once than host memory holds. How many are brought in at once is
bounded, in all and for each tenant; what lies in host memory already does not count, whatever the store does. Fails
closed: a request whose adapter is not held is never let in.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from adapters.cache.errors import AdapterLoading
from core.contracts.replicas import Tier
from core.errors import Unavailable
from data_plane.engine.middleware.disk_leases import DiskLeases
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters
from data_plane.engine.middleware.worker_client import WorkerClient
from data_plane.engine.residency import ResidencyReader
from data_plane.engine.settings import MiddlewareSettings

_log = structlog.get_logger()
_LOAD_ATTEMPTS = 2  # the second after the disk cache has looked at every byte and mended what it found


class AdapterUnusable(Unavailable):
    """The engine cannot read the adapter, though its bytes are those that were validated."""

    default_code = "adapter_unusable"


@dataclass(frozen=True)
class LoadOutcome:
    """Where an adapter lay when a request came, and how long the request waited for it."""

    tier: Tier
    load_ms: int


class _AdapterUse:
    """One adapter in use. ``turn`` lets one request bring it in while the others of the same adapter wait; ``held``
    is a place taken in host memory, ``ready`` that the adapter lies there.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.held = False
        self.ready = False


class AdapterLoader:
    """Who holds what in host memory. One event loop."""

    def __init__(
        self,
        settings: MiddlewareSettings,
        refused: RevokedAdapters,
        disk: DiskLeases,
        worker: WorkerClient,
        residency: ResidencyReader,
    ) -> None:
        self._settings = settings
        self._refused = refused
        self._disk = disk
        self._worker = worker
        self._residency = residency
        self._holdings: dict[str, _AdapterUse] = {}
        self._room = asyncio.Semaphore(settings.memory_adapters)
        self._on_the_way: Counter[str] = Counter()  # by tenant

    @property
    def names(self) -> frozenset[str]:
        """Adapters in use or on their way."""
        return frozenset(self._holdings)

    @asynccontextmanager
    async def warm(self, name: str, tenant: str | None) -> AsyncIterator[LoadOutcome]:
        """The adapter is in host memory within the block, and stays there.

        Raises ``AdapterLoading`` when that takes longer than a request waits or too many are on their way, ``NotFound``
        for one that is not stored, revoked or of another base model, another ``Unavailable`` when something below is
        down.
        """
        holding = self._enter(name)
        try:
            yield await self._acquire(name, tenant, holding)
        finally:
            self._leave(name, holding)

    def lost(self, name: str) -> None:
        """The adapter was taken out although requests of it run on: the next one brings it in again."""
        if (holding := self._holdings.get(name)) is not None:
            holding.ready = False

    def _enter(self, name: str) -> _AdapterUse:
        holding = self._holdings.setdefault(name, _AdapterUse())
        holding.users += 1
        return holding

    def _leave(self, name: str, holding: _AdapterUse) -> None:
        holding.users -= 1
        if holding.users == 0:
            del self._holdings[name]
            if holding.held:
                self._let_go(name, holding)

    async def _acquire(self, name: str, tenant: str | None, holding: _AdapterUse) -> LoadOutcome:
        started = time.monotonic()
        if holding.ready:
            return LoadOutcome(self._tier_of_held(name), 0)
        try:
            async with asyncio.timeout(self._settings.adapter_load_deadline_s) as patience:
                async with holding.turn:
                    tier = self._tier_of_held(name) if holding.ready else await self._bring(name, tenant, holding)
                    holding.ready = True
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise AdapterLoading(
                "the adapter is being brought in behind others; ask again", eta_s=1, retry_after_s=1
            ) from error
        return LoadOutcome(tier, round((time.monotonic() - started) * 1000))

    async def _bring(self, name: str, tenant: str | None, holding: _AdapterUse) -> Tier:
        with ExitStack() as place:
            counts = not self._is_resident(name)
            if counts:
                place.enter_context(self._place(name, tenant))
            if (tier := await self._hold(name, holding)) is not None:
                return tier
            self._let_go(name, holding)  # downloads can be slow, and must not keep others out of host memory
            if not counts:  # it was evicted meanwhile
                place.enter_context(self._place(name, tenant))
            return await self._bring_from_below(name, tenant, holding)

    @contextmanager
    def _place(self, name: str, tenant: str | None) -> Iterator[None]:
        """One of the adapters that are brought in at the same time."""
        owner, most = name if tenant is None else tenant, self._settings.adapter_loads_per_tenant_max
        if self._on_the_way[owner] >= most:
            raise AdapterLoading(f"{most} adapters of this tenant are being brought in", eta_s=1, retry_after_s=1)
        if self._on_the_way.total() >= self._settings.adapter_loads_max:
            raise AdapterLoading("this engine is bringing in too many adapters at once", eta_s=1, retry_after_s=1)
        self._on_the_way[owner] += 1
        try:
            yield
        finally:
            self._on_the_way[owner] -= 1
            if not self._on_the_way[owner]:
                del self._on_the_way[owner]

    async def _bring_from_below(self, name: str, tenant: str | None, holding: _AdapterUse) -> Tier:
        tier: Tier = "disk" if await self._disk.has(name) else "store"
        for attempt in range(_LOAD_ATTEMPTS):
            folder = await self._disk.fetch(name, tenant)
            if (already := await self._hold(name, holding)) is not None:
                return already
            if await self._load(name, folder, holding):
                return tier
            self._refused.check(name)  # which the worker does not load either
            _log.warning("adapter could not be loaded; looking at its files again", adapter=name, attempt=attempt)
            self._disk.suspect(folder)
        raise AdapterUnusable(f"adapter {name} cannot be loaded by the engine; see its log", retry_after_s=5)

    async def _load(self, name: str, folder: Path, holding: _AdapterUse) -> bool:
        loaded = False
        try:
            loaded = (await self._worker.load(name, folder)).loaded
        finally:
            if not loaded:
                self._let_go(name, holding)
        return loaded

    async def _hold(self, name: str, holding: _AdapterUse) -> Tier | None:
        if not holding.held:
            await self._room.acquire()
            holding.held = True
        try:
            return await self._worker.hold(name)
        except BaseException:  # also a request that was cancelled: nobody else knows of its place
            self._let_go(name, holding)
            raise

    def _let_go(self, name: str, holding: _AdapterUse) -> None:
        holding.held = False
        self._room.release()
        self._worker.release(name)

    def _is_resident(self, name: str) -> bool:
        table = self._residency.now()
        return table is not None and (name in table.slots or name in table.in_memory)

    def _tier_of_held(self, name: str) -> Tier:
        table = self._residency.now()
        return "slot" if table is not None and name in table.slots else "memory"
