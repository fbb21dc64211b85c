"""The engine's door as its agent, and whoever compares the agent's word with the truth, asks it over HTTP.

What the door does with an adapter is its own business; here are the questions, the answers' shapes, and what their
failure means.
"""

from typing import Literal, TypeVar

import aiohttp
import msgspec

from core.contracts import Tier
from core.errors import BadGateway

_ANSWER_MAX_BYTES = 16 << 20
_SAID_CHARS = 300
_ROOT = "/tenora/v1"
T = TypeVar("T")


class SlotTruth(msgspec.Struct, frozen=True):
    """One slot of the engine: which adapter is in it, and whether its weights are all zero."""

    index: int
    lora_int_id: int | None
    name: str | None
    zeroed: bool


class MemoryTruth(msgspec.Struct, frozen=True):
    """One adapter in the engine's host memory. ``name`` is None where the engine has forgotten whose it is."""

    lora_int_id: int
    name: str | None


class EngineTruth(msgspec.Struct, frozen=True, kw_only=True):
    """Where adapters lie, as the engine itself says. ``disk`` has digests, the others engine names."""

    slots: tuple[SlotTruth, ...]
    memory: tuple[MemoryTruth, ...]
    names: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    disk: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()

    @property
    def in_slots(self) -> tuple[str | None, ...]:
        """The engine name in each slot, by index."""
        by_index = {slot.index: slot.name for slot in self.slots}
        return tuple(by_index.get(index) for index in range(max(by_index, default=-1) + 1))

    @property
    def in_memory(self) -> frozenset[str]:
        """Engine names in host memory, registered or ready to be."""
        return frozenset(each.name for each in self.memory if each.name is not None) | frozenset(self.staged)

    @property
    def known(self) -> frozenset[str]:
        """Every engine name that any tier above the disk, or the front end, still has."""
        return self.in_memory | frozenset(name for name in self.in_slots if name is not None) | frozenset(self.names)


class Prefetched(msgspec.Struct, frozen=True):
    """Where an adapter lay before, and how long bringing it took."""

    tier: Tier
    load_ms: int


class Unloaded(msgspec.Struct, frozen=True):
    """How many requests of an adapter ended by themselves and how many were ended, and what is left of it."""

    drained: int
    aborted: int
    in_slots: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()


class _ErrorDetail(msgspec.Struct, frozen=True):
    code: str | int | None = None
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorDetail | str = ""


class DoorRefused(BadGateway):
    """The engine answered, and not with what was asked for. ``answered`` is its HTTP status."""

    default_code = "engine_refused"

    def __init__(self, message: str, *, answered: int, code: str | None, retry_after_s: float | None) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)
        self.answered = answered


class Door:
    """One engine's ``/tenora/v1`` routes. Every call raises DoorRefused, aiohttp.ClientError or TimeoutError."""

    def __init__(self, session: aiohttp.ClientSession, url: str, engine_key: str, *, timeout_s: float) -> None:
        self._session = session
        self._url = url + _ROOT
        self._headers = {"Authorization": f"Bearer {engine_key}", "Content-Type": "application/json"}
        self._timeout_s = timeout_s

    async def residency(self) -> EngineTruth:
        """The truth, asked of the engine's worker."""
        return await self._ask("GET", "/residency", None, EngineTruth)

    async def prefetch(self, name: str, tier: Literal["disk", "memory"], *, timeout_s: float) -> Prefetched:
        """Bring an adapter to a tier; returns when it is there."""
        return await self._ask("POST", "/prefetch", {"name": name, "tier": tier}, Prefetched, timeout_s)

    async def unload(self, name: str, *, drain_s: float, timeout_s: float) -> Unloaded:
        """End an adapter in every tier, after its running requests or after ``drain_s``. Its name stays refused."""
        body = {"name": name, "drain_s": drain_s}
        return await self._ask("POST", "/unload", body, Unloaded, timeout_s)

    async def refuse(self, names: list[str]) -> None:
        """The whole set of names to refuse from now on; others are served again."""
        await self._ask("PUT", "/revoked", {"names": names}, object)

    async def pin(self, names: list[str]) -> None:
        """The whole set of names to keep in host memory once they are there."""
        await self._ask("PUT", "/pins", {"names": names}, object)

    async def _ask(self, method: str, path: str, body: object, shape: type[T], timeout_s: float | None = None) -> T:
        async with self._session.request(
            method,
            self._url + path,
            data=None if body is None else msgspec.json.encode(body),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s or self._timeout_s),
            allow_redirects=False,
        ) as response:
            raw = await response.content.read(_ANSWER_MAX_BYTES)
            if response.status not in (200, 204):
                raise _refused(f"{method} {_ROOT}{path}", response.status, raw, response.headers.get("Retry-After"))
        if shape is object:
            return shape()
        try:
            return msgspec.json.decode(raw, type=shape)
        except msgspec.MsgspecError as error:
            raise DoorRefused(
                f"{method} {_ROOT}{path}: the engine's answer cannot be read: {error}",
                answered=200,
                code=None,
                retry_after_s=None,
            ) from error


def _refused(what: str, status: int, raw: bytes, retry_after: str | None) -> DoorRefused:
    try:
        detail = msgspec.json.decode(raw, type=_ErrorBody).error
    except msgspec.MsgspecError:
        detail = raw[:_SAID_CHARS].decode(errors="replace")
    code, said = (None, detail) if isinstance(detail, str) else (detail.code, detail.message)
    return DoorRefused(
        f"{what}: the engine answered {status}: {said[:_SAID_CHARS]}",
        answered=status,
        code=code if isinstance(code, str) else None,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdecimal() else None,
    )
