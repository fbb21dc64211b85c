"""HTTP client of the middleware's control routes, ``/tenora/v1``, as the agent calls them.

The shapes are in ``control_protocol``, the routes in ``middleware.control_routes``. This module decides what a failed
call means.
"""

from collections.abc import Iterable
from typing import Literal, TypeVar

import aiohttp
import msgspec

from core.errors import BadGateway
from data_plane.engine.control_protocol import (
    Ended,
    EndedBody,
    EngineInventory,
    PinsBody,
    PrefetchBody,
    Prefetched,
    RevokedBody,
    StoreState,
    UnloadBody,
    Unloaded,
)

_ANSWER_MAX_BYTES = 16 << 20
_MESSAGE_CHARS_MAX = 300
_ROOT = "/tenora/v1"
T = TypeVar("T")


class _ErrorDetail(msgspec.Struct, frozen=True):
    code: str | int | None = None
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorDetail | str = ""


class ControlRequestFailed(BadGateway):
    """The engine answered with an error or an unreadable body. ``answered`` is its HTTP status."""

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

    async def inventory(self) -> EngineInventory:
        """The engine's inventory, which its worker takes between two steps."""
        return await self._call("GET", "/residency", None, EngineInventory)

    async def prefetch(
        self, name: str, tier: Literal["disk", "memory"], *, tenant: str | None, timeout_s: float
    ) -> Prefetched:
        """Load an adapter up to a tier, within the load limits of its tenant. Returns when it is there."""
        return await self._call("POST", "/prefetch", PrefetchBody(name, tier, tenant), Prefetched, timeout_s)

    async def unload(self, name: str, *, drain_s: float, timeout_s: float) -> Unloaded:
        """Remove an adapter from every tier, after its running requests or after ``drain_s``. It stays revoked."""
        return await self._call("POST", "/unload", UnloadBody(name, drain_s), Unloaded, timeout_s)

    async def set_revoked(self, adapters: Iterable[str]) -> None:
        """Replace the set of revoked adapters. Adapters that are not in it are served again."""
        await self._call("PUT", "/revoked", RevokedBody(tuple(adapters)), object)

    async def pin(self, names: list[str]) -> None:
        """Replace the set of engine names to keep in host memory once they are there."""
        await self._call("PUT", "/pins", PinsBody(tuple(names)), object)

    async def ended(self, after: int, *, at_once: bool = False) -> Ended:
        """What the engine has counted for requests that have ended, after this version."""
        return await self._call("POST", "/ended", EndedBody(after, at_once), Ended)

    async def why_store_unreadable(self) -> str | None:
        """Why the engine cannot read the object store, with the fix; None when it can."""
        return (await self._call("GET", "/store", None, StoreState)).unreadable

    async def _call(self, method: str, path: str, body: object, shape: type[T], timeout_s: float | None = None) -> T:
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
                raise _request_failed(
                    f"{method} {_ROOT}{path}", response.status, raw, response.headers.get("Retry-After")
                )
        if shape is object:
            return shape()
        try:
            return msgspec.json.decode(raw, type=shape)
        except msgspec.MsgspecError as error:
            raise ControlRequestFailed(
                f"{method} {_ROOT}{path}: invalid answer of the engine: {error}",
                answered=200,
                code=None,
                retry_after_s=None,
            ) from error


def _request_failed(what: str, status: int, raw: bytes, retry_after: str | None) -> ControlRequestFailed:
    try:
        detail = msgspec.json.decode(raw, type=_ErrorBody).error
    except msgspec.MsgspecError:
        detail = raw[:_MESSAGE_CHARS_MAX].decode(errors="replace")
    code, message = (None, detail) if isinstance(detail, str) else (detail.code, detail.message)
    return ControlRequestFailed(
        f"{what}: the engine answered {status}: {message[:_MESSAGE_CHARS_MAX]}",
        answered=status,
        code=code if isinstance(code, str) else None,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdecimal() else None,
    )
