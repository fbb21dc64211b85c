"""The engine's door as its agent, and whoever compares the agent's word with the truth, asks it over HTTP.

What the door does with an adapter is its own business; here are the questions and what their failure means. The shapes
are in ``door_protocol``.
"""

from collections.abc import Iterable
from typing import Literal, TypeVar

import aiohttp
import msgspec

from core.errors import BadGateway
from data_plane.engine.control_protocol import (
    EngineInventory,
    PinsBody,
    PrefetchBody,
    Prefetched,
    RevokedBody,
    UnloadBody,
    Unloaded,
)

_ANSWER_MAX_BYTES = 16 << 20
_SAID_CHARS = 300
_ROOT = "/tenora/v1"
T = TypeVar("T")


class _ErrorDetail(msgspec.Struct, frozen=True):
    code: str | int | None = None
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorDetail | str = ""


class ControlRequestFailed(BadGateway):
    """The engine answered, and not with what was asked for. ``answered`` is its HTTP status."""

    default_code = "engine_refused"

    def __init__(self, message: str, *, answered: int, code: str | None, retry_after_s: float | None) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)
        self.answered = answered


class ControlClient:
    """HTTP client of one engine's ``/tenora/v1`` routes. Every call raises ControlRequestFailed, aiohttp.ClientError or
    TimeoutError.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, engine_key: str, *, timeout_s: float) -> None:
        self._session = session
        self._url = url + _ROOT
        self._headers = {"Authorization": f"Bearer {engine_key}", "Content-Type": "application/json"}
        self._timeout_s = timeout_s

    async def residency(self) -> EngineInventory:
        """The truth, asked of the engine's worker."""
        return await self._ask("GET", "/residency", None, EngineInventory)

    async def prefetch(
        self, name: str, tier: Literal["disk", "memory"], *, tenant: str | None, timeout_s: float
    ) -> Prefetched:
        """Bring an adapter to a tier, in turn with others of its tenant; returns when it is there."""
        return await self._ask("POST", "/prefetch", PrefetchBody(name, tier, tenant), Prefetched, timeout_s)

    async def unload(self, name: str, *, drain_s: float, timeout_s: float) -> Unloaded:
        """End an adapter in every tier, after its running requests or after ``drain_s``. It stays refused."""
        return await self._ask("POST", "/unload", UnloadBody(name, drain_s), Unloaded, timeout_s)

    async def refuse(self, adapters: Iterable[str]) -> None:
        """The whole set of adapters to refuse from now on; others are served again."""
        await self._ask("PUT", "/revoked", RevokedBody(tuple(adapters)), object)

    async def pin(self, names: list[str]) -> None:
        """The whole set of names to keep in host memory once they are there."""
        await self._ask("PUT", "/pins", PinsBody(tuple(names)), object)

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
            raise ControlRequestFailed(
                f"{method} {_ROOT}{path}: the engine's answer cannot be read: {error}",
                answered=200,
                code=None,
                retry_after_s=None,
            ) from error


def _refused(what: str, status: int, raw: bytes, retry_after: str | None) -> ControlRequestFailed:
    try:
        detail = msgspec.json.decode(raw, type=_ErrorBody).error
    except msgspec.MsgspecError:
        detail = raw[:_SAID_CHARS].decode(errors="replace")
    code, said = (None, detail) if isinstance(detail, str) else (detail.code, detail.message)
    return ControlRequestFailed(
        f"{what}: the engine answered {status}: {said[:_SAID_CHARS]}",
        answered=status,
        code=code if isinstance(code, str) else None,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdecimal() else None,
    )
