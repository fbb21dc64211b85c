"""The door's own routes, under ``/tenora/v1``: what lies where, and bringing adapters in, taking them out, pinning and
refusing them. Only the replica's agent and its operators use them. They fail closed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import msgspec

from core.contracts import Tier
from core.errors import AppError, InvalidRequest, TooLarge, Unprocessable
from data_plane.engine.door.adapter_door import ENGINE_NAME, AdapterDoor, AdapterRevoked
from data_plane.engine.door.answers import ClientGone, Receive, Scope, Send, answer, body, refuse
from data_plane.engine.door.forget import Forgetting
from data_plane.engine.door.front_end import FrontEnd
from data_plane.engine.door.unload import refuse_names, unload

_ROOT: Final = "/tenora/v1"
_NAME_BYTES: Final = 128
_DRAIN_MAX_S: Final = 3600.0
Shape = TypeVar("Shape")


class PrefetchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which adapter to bring how far up."""

    name: str
    tier: Literal["disk", "memory"] = "memory"


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which adapter to take out, and how long its requests may go on."""

    name: str
    drain_s: float = 0.0


class NamesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole set of engine names."""

    names: tuple[str, ...]


class DoorRoutes:
    """Answers ``/tenora/v1``. The front end comes with the first request, since vLLM makes it after its middleware."""

    def __init__(self, door: AdapterDoor) -> None:
        self._door = door
        self._forgetting: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Callable[[FrontEnd, bytes], Awaitable[Any]]] = {
            ("GET", f"{_ROOT}/residency"): self._residency,
            ("POST", f"{_ROOT}/prefetch"): self._prefetch,
            ("POST", f"{_ROOT}/unload"): self._unload,
            ("PUT", f"{_ROOT}/revoked"): self._revoked,
            ("PUT", f"{_ROOT}/pins"): self._pins,
        }

    def begin(self, state: Any) -> None:
        """Start what runs beside the requests, once."""
        if self._forgetting is None:
            self._forgetting = asyncio.create_task(Forgetting(self._door, FrontEnd(state)).run())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of a route in ``ROUTES``; its key has been checked."""
        try:
            content = await body(receive, self._door.settings.door_names_max * _NAME_BYTES)
            if content is None:
                raise TooLarge(f"the body names more than {self._door.settings.door_names_max} adapters")
            handle = self._routes[scope["method"], scope["path"]]
            said = await handle(FrontEnd(scope["app"].state), content)
            await answer(send, 200, msgspec.to_builtins(said))
        except ClientGone:
            return
        except AppError as error:
            await refuse(send, error)

    async def _residency(self, front_end: FrontEnd, _: bytes) -> dict[str, Any]:
        truth = await front_end.truth()
        return {
            **msgspec.structs.asdict(truth),
            "names": sorted(front_end.names),
            "disk": sorted(await self._door.disk.digests()),
            "revoked": sorted(self._door.revoked),
        }

    async def _prefetch(self, front_end: FrontEnd, content: bytes) -> dict[str, Any]:
        wanted = _decode(content, PrefetchBody)
        _check_names(wanted.name)
        if wanted.name in self._door.revoked:
            raise AdapterRevoked(f"adapter {wanted.name} has been revoked on this replica")
        if wanted.tier == "disk":
            return await self._prefetch_to_disk(wanted.name)
        async with self._door.warmer.warm(wanted.name, None) as warmth:
            if not await front_end.register(wanted.name):
                raise Unprocessable(f"adapter {wanted.name} was not taken by the engine; see its log")
        return {"tier": warmth.tier, "load_ms": warmth.load_ms}

    async def _prefetch_to_disk(self, name: str) -> dict[str, Any]:
        started, tier = time.monotonic(), self._tier_above_disk(name)
        if tier is None:
            tier = "disk" if await self._door.disk.has(name) else "store"
            await self._door.disk.fetch(name, None)
        return {"tier": tier, "load_ms": round((time.monotonic() - started) * 1000)}

    def _tier_above_disk(self, name: str) -> Tier | None:
        table = self._door.residency.now()
        if table is None:
            return None
        return "slot" if name in table.slots else "memory" if name in table.in_memory else None

    async def _unload(self, front_end: FrontEnd, content: bytes) -> Any:
        wanted = _decode(content, UnloadBody)
        _check_names(wanted.name)
        if not 0 <= wanted.drain_s <= _DRAIN_MAX_S:
            raise InvalidRequest(f"drain_s must be between 0 and {_DRAIN_MAX_S:g}", param="drain_s")
        return await unload(self._door, front_end, wanted.name, wanted.drain_s)

    async def _revoked(self, _: FrontEnd, content: bytes) -> dict[str, Any]:
        names = self._names(content)
        await refuse_names(self._door, frozenset(names))
        return {"names": sorted(self._door.revoked)}

    async def _pins(self, _: FrontEnd, content: bytes) -> dict[str, Any]:
        names = self._names(content)
        if len(names) > (most := self._door.settings.memory_adapters // 2):
            raise Unprocessable(f"{len(names)} pins; half of host memory, {most} adapters, may be pinned")
        return {"missing": list(await self._door.worker.pin(names))}

    def _names(self, content: bytes) -> tuple[str, ...]:
        names = _decode(content, NamesBody).names
        if len(names) > self._door.settings.door_names_max:
            raise TooLarge(f"{len(names)} names; {self._door.settings.door_names_max} are the most")
        _check_names(*names)
        return names


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
        if ENGINE_NAME.fullmatch(name) is None:
            raise InvalidRequest(f"{name[:80]!r} is no engine name; it must be <adapter id>@<digest>", param="name")
