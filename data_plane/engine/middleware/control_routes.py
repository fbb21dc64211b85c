"""The door's own routes, under ``/tenora/v1``: what lies where, and bringing adapters in, taking them out, pinning and
refusing them. Only the replica's agent and its operators use them. They fail closed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from core.adapter_names import is_engine_name
from core.contracts.replicas import Tier
from core.errors import AppError, InvalidRequest, TooLarge, Unprocessable
from core.ids import is_id
from data_plane.engine.control_protocol import (
    EngineInventory,
    Pinned,
    PinsBody,
    PrefetchBody,
    Prefetched,
    Refusing,
    RevokedBody,
    UnloadBody,
    Unloaded,
)
from data_plane.engine.middleware.adapter_requests import AdapterRequests
from data_plane.engine.middleware.asgi import CallerDisconnected, Receive, Scope, Send, answer, body, refuse
from data_plane.engine.middleware.idle_adapter_sweep import IdleAdapterSweep
from data_plane.engine.middleware.unload import refuse_adapters, unload
from data_plane.engine.middleware.vllm_frontend import VllmFrontend

_ROOT: Final = "/tenora/v1"
_NAME_BYTES: Final = 128
_ADAPTER_BYTES: Final = 40
_DRAIN_MAX_S: Final = 3600.0
Shape = TypeVar("Shape")


class ControlRoutes:
    """Answers ``/tenora/v1``. The front end comes with the first request, since vLLM makes it after its middleware."""

    def __init__(self, door: AdapterRequests) -> None:
        self._door = door
        self._forgetting: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Callable[[VllmFrontend, bytes], Awaitable[Any]]] = {
            ("GET", f"{_ROOT}/residency"): self._residency,
            ("POST", f"{_ROOT}/prefetch"): self._prefetch,
            ("POST", f"{_ROOT}/unload"): self._unload,
            ("PUT", f"{_ROOT}/revoked"): self._revoked,
            ("PUT", f"{_ROOT}/pins"): self._pins,
        }

    def begin(self, state: Any) -> None:
        """Start what runs beside the requests, once."""
        if self._forgetting is None:
            self._forgetting = asyncio.create_task(IdleAdapterSweep(self._door, VllmFrontend(state)).run())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of a route in ``ROUTES``; its key has been checked."""
        try:
            settings = self._door.settings
            bytes_max = max(settings.pinned_adapters_max * _NAME_BYTES, settings.revoked_adapters_max * _ADAPTER_BYTES)
            if (content := await body(receive, bytes_max)) is None:
                raise TooLarge(f"the body is larger than {bytes_max} bytes")
            handle = self._routes[scope["method"], scope["path"]]
            said = await handle(VllmFrontend(scope["app"].state), content)
            await answer(send, 200, msgspec.to_builtins(said))
        except CallerDisconnected:
            return
        except AppError as error:
            await refuse(send, error)

    async def _residency(self, front_end: VllmFrontend, _: bytes) -> EngineInventory:
        return msgspec.structs.replace(
            await front_end.truth(),
            names=tuple(sorted(front_end.names)),
            disk=tuple(sorted(await self._door.disk.digests())),
            revoked=tuple(sorted(self._door.refused.adapters)),
        )

    async def _prefetch(self, front_end: VllmFrontend, content: bytes) -> Prefetched:
        wanted = _decode(content, PrefetchBody)
        _check_names(wanted.name)
        self._door.refused.check(wanted.name)
        with self._door.in_flight.request(wanted.name, None):  # so that an unload takes out what this brings in
            if wanted.tier == "disk":
                return await self._prefetch_to_disk(wanted)
            async with self._door.warmer.warm(wanted.name, wanted.tenant) as warmth:
                self._door.refused.check(wanted.name)
                if not await front_end.register(wanted.name):
                    raise Unprocessable(f"adapter {wanted.name} was not taken by the engine; see its log")
            return Prefetched(warmth.tier, warmth.load_ms)

    async def _prefetch_to_disk(self, wanted: PrefetchBody) -> Prefetched:
        started, tier = time.monotonic(), self._tier_above_disk(wanted.name)
        if tier is None:
            tier = "disk" if await self._door.disk.has(wanted.name) else "store"
            await self._door.disk.fetch(wanted.name, wanted.tenant)
        return Prefetched(tier, round((time.monotonic() - started) * 1000))

    def _tier_above_disk(self, name: str) -> Tier | None:
        table = self._door.residency.now()
        if table is None:
            return None
        return "slot" if name in table.slots else "memory" if name in table.in_memory else None

    async def _unload(self, front_end: VllmFrontend, content: bytes) -> Unloaded:
        wanted = _decode(content, UnloadBody)
        _check_names(wanted.name)
        if not 0 <= wanted.drain_s <= _DRAIN_MAX_S:
            raise InvalidRequest(f"drain_s must be between 0 and {_DRAIN_MAX_S:g}", param="drain_s")
        return await unload(self._door, front_end, wanted.name, wanted.drain_s)

    async def _revoked(self, _: VllmFrontend, content: bytes) -> Refusing:
        adapters, most = _decode(content, RevokedBody).adapters, self._door.settings.revoked_adapters_max
        if len(adapters) > most:
            raise TooLarge(f"{len(adapters)} adapters; {most} are the most")
        for each in adapters:
            if not is_id(each, "ad"):
                raise InvalidRequest(f"{each[:80]!r} is no adapter id", param="adapters")
        await refuse_adapters(self._door, frozenset(adapters))
        return Refusing(len(self._door.refused.adapters))

    async def _pins(self, _: VllmFrontend, content: bytes) -> Pinned:
        names = _decode(content, PinsBody).names
        if len(names) > self._door.settings.pinned_adapters_max:
            raise TooLarge(f"{len(names)} names; {self._door.settings.pinned_adapters_max} are the most")
        _check_names(*names)
        if len(names) > (most := self._door.settings.memory_adapters // 2):
            raise Unprocessable(f"{len(names)} pins; half of host memory, {most} adapters, may be pinned")
        return Pinned(await self._door.worker.pin(names))


ROUTES: Final = frozenset(
    {
        ("GET", f"{_ROOT}/residency"),
        ("POST", f"{_ROOT}/prefetch"),
        ("POST", f"{_ROOT}/unload"),
        ("PUT", f"{_ROOT}/revoked"),
        ("PUT", f"{_ROOT}/pins"),
    }
)


def _decode(content: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(content, type=shape)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not what this route takes: {error}") from error


def _check_names(*names: str) -> None:
    for name in names:
        if not is_engine_name(name):
            raise InvalidRequest(f"{name[:80]!r} is no engine name; it must be <adapter id>@<digest>", param="name")
