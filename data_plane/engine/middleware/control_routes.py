"""The middleware's control routes, ``/tenora/v1``: list where adapters are, prefetch, unload, pin and revoke them, and
say how far requests have got and what was counted for those that have ended.

Only the replica's agent and its operators call them, and gateways ``progress``. They fail closed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from core.adapter_names import is_engine_name
from core.contracts.replicas import Tier
from core.contracts.usage import GenerationProgress
from core.errors import AppError, InvalidRequest, TooLarge, Unprocessable
from core.ids import is_id
from data_plane.engine.control_protocol import (
    Ended,
    EndedBody,
    EngineInventory,
    Pinned,
    PinsBody,
    PrefetchBody,
    Prefetched,
    Progress,
    ProgressBody,
    RevokedBody,
    RevokedCount,
    StoreState,
    UnloadBody,
    Unloaded,
)
from data_plane.engine.middleware.adapter_requests import AdapterRequests
from data_plane.engine.middleware.asgi import CallerDisconnected, Receive, Scope, Send, read_body, send_error, send_json
from data_plane.engine.middleware.idle_adapter_sweep import IdleAdapterSweep
from data_plane.engine.middleware.unload import set_revoked, unload
from data_plane.engine.middleware.vllm_frontend import VllmFrontend

_ROOT: Final = "/tenora/v1"
_NAME_BYTES: Final = 128
_ADAPTER_BYTES: Final = 40
_DRAIN_MAX_S: Final = 3600.0
Shape = TypeVar("Shape")


class ControlRoutes:
    """Answers ``/tenora/v1``. vLLM builds its front end after its middleware, so the first request brings it."""

    def __init__(self, adapters: AdapterRequests) -> None:
        self._adapters = adapters
        self._sweep: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Callable[[VllmFrontend, bytes], Awaitable[Any]]] = {
            ("GET", f"{_ROOT}/residency"): self._residency,
            ("POST", f"{_ROOT}/prefetch"): self._prefetch,
            ("POST", f"{_ROOT}/unload"): self._unload,
            ("PUT", f"{_ROOT}/revoked"): self._revoked,
            ("PUT", f"{_ROOT}/pins"): self._pins,
            ("POST", f"{_ROOT}/progress"): self._progress,
            ("POST", f"{_ROOT}/ended"): self._ended,
            ("GET", f"{_ROOT}/store"): self._store,
        }

    def start_sweep(self, state: Any) -> None:
        """Start the idle adapter sweep, unless it runs already."""
        if self._sweep is None:
            self._sweep = asyncio.create_task(IdleAdapterSweep(self._adapters, VllmFrontend(state)).run_forever())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a route in ``ROUTES``, whose key has been checked."""
        try:
            settings = self._adapters.settings
            bytes_max = max(settings.pinned_adapters_max * _NAME_BYTES, settings.revoked_adapters_max * _ADAPTER_BYTES)
            if (content := await read_body(receive, bytes_max)) is None:
                raise TooLarge(f"the body is larger than {bytes_max} bytes")
            handle = self._routes[scope["method"], scope["path"]]
            result = await handle(VllmFrontend(scope["app"].state), content)
            await send_json(send, 200, msgspec.to_builtins(result))
        except CallerDisconnected:
            return
        except AppError as error:
            await send_error(send, error)

    async def _residency(self, front_end: VllmFrontend, _: bytes) -> EngineInventory:
        return msgspec.structs.replace(
            await front_end.inventory(),
            names=tuple(sorted(front_end.names)),
            disk=tuple(sorted(await self._adapters.disk.digests())),
            revoked=tuple(sorted(self._adapters.revoked.adapters)),
        )

    async def _prefetch(self, front_end: VllmFrontend, content: bytes) -> Prefetched:
        wanted = _decode(content, PrefetchBody)
        _require_engine_names(wanted.name)
        self._adapters.revoked.require_not_revoked(wanted.name)
        with self._adapters.in_flight.track(wanted.name, None):  # so that an unload removes what this loads
            if wanted.tier == "disk":
                return await self._prefetch_to_disk(wanted)
            async with self._adapters.loader.loaded(wanted.name, wanted.tenant) as outcome:
                self._adapters.revoked.require_not_revoked(wanted.name)
                if not await front_end.register(wanted.name):
                    raise Unprocessable(f"the engine did not accept adapter {wanted.name}; see its log")
            return Prefetched(outcome.tier, outcome.load_ms)

    async def _prefetch_to_disk(self, wanted: PrefetchBody) -> Prefetched:
        started, tier = time.monotonic(), self._tier_above_disk(wanted.name)
        if tier is None:
            tier = "disk" if await self._adapters.disk.has(wanted.name) else "store"
            await self._adapters.disk.fetch(wanted.name, wanted.tenant)
        return Prefetched(tier, round((time.monotonic() - started) * 1000))

    def _tier_above_disk(self, name: str) -> Tier | None:
        table = self._adapters.residency.now()
        if table is None:
            return None
        return "slot" if name in table.slots else "memory" if name in table.in_memory else None

    async def _unload(self, front_end: VllmFrontend, content: bytes) -> Unloaded:
        wanted = _decode(content, UnloadBody)
        _require_engine_names(wanted.name)
        if not 0 <= wanted.drain_s <= _DRAIN_MAX_S:
            raise InvalidRequest(f"drain_s must be between 0 and {_DRAIN_MAX_S:g}", param="drain_s")
        return await unload(self._adapters, front_end, wanted.name, wanted.drain_s)

    async def _revoked(self, _: VllmFrontend, content: bytes) -> RevokedCount:
        adapters, limit = _decode(content, RevokedBody).adapters, self._adapters.settings.revoked_adapters_max
        if len(adapters) > limit:
            raise TooLarge(f"{len(adapters)} adapters; the limit is {limit}")
        for each in adapters:
            if not is_id(each, "ad"):
                raise InvalidRequest(f"{each[:80]!r} is not an adapter id", param="adapters")
        await set_revoked(self._adapters, frozenset(adapters))
        return RevokedCount(len(self._adapters.revoked.adapters))

    async def _pins(self, _: VllmFrontend, content: bytes) -> Pinned:
        names = _decode(content, PinsBody).names
        if len(names) > self._adapters.settings.pinned_adapters_max:
            raise TooLarge(f"{len(names)} names; the limit is {self._adapters.settings.pinned_adapters_max}")
        _require_engine_names(*names)
        if len(names) > (limit := self._adapters.settings.memory_adapters // 2):
            raise Unprocessable(f"{len(names)} pins; the limit is half of host memory, {limit} adapters")
        return Pinned(await self._adapters.worker.pin(names))

    async def _progress(self, _: VllmFrontend, content: bytes) -> Progress:
        ids = _decode(content, ProgressBody).request_ids
        running = {each: found.counts() for each in ids if (found := self._adapters.aborts.running(each)) is not None}
        kv_table = self._adapters.kv_table
        return Progress(
            {each: GenerationProgress(counts, kv_table.page_ms(each)) for each, counts in running.items() if counts}
        )

    async def _ended(self, _: VllmFrontend, content: bytes) -> Ended:
        asked = _decode(content, EndedBody)
        return self._adapters.ended.collect(asked.after, at_once=asked.at_once)

    async def _store(self, _front_end: VllmFrontend, _content: bytes) -> StoreState:
        return StoreState(await self._adapters.disk.why_store_unreadable())


ROUTES: Final = frozenset(
    {
        ("GET", f"{_ROOT}/residency"),
        ("POST", f"{_ROOT}/prefetch"),
        ("POST", f"{_ROOT}/unload"),
        ("PUT", f"{_ROOT}/revoked"),
        ("PUT", f"{_ROOT}/pins"),
        ("POST", f"{_ROOT}/progress"),
        ("POST", f"{_ROOT}/ended"),
        ("GET", f"{_ROOT}/store"),
    }
)


def _decode(content: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(content, type=shape)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"invalid body: {error}") from error


def _require_engine_names(*names: str) -> None:
    for name in names:
        if not is_engine_name(name):
            raise InvalidRequest(f"{name[:80]!r} is not an engine name; it must be <adapter id>@<digest>", param="name")
