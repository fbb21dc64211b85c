"""Calls the API within the process, for the person in the console: the same routes, guards, limits and answers that a
key gets. The console has no other way to read or change anything of a tenant.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

import msgspec
from litestar.types import ASGIApp, HTTPScope, Message, Scope

from control_plane.auth.authenticate import Principal

_PASSED_ON: Final = ("asgi", "http_version", "scheme", "server", "client", "app", "litestar_app", "root_path")


@dataclass(frozen=True, kw_only=True)
class ApiAnswer:
    """The answer of a route. ``problem`` is the error body of one that refused."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether the route did what it was asked."""
        return self.status < 400

    @cached_property
    def body(self) -> Any:  # JSON, as the route's type says
        """The body, decoded; None for an empty one."""
        return msgspec.json.decode(self.content) if self.content else None

    @property
    def version(self) -> str:
        """Names what the answer said, so that a form can tell whether it has changed since."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    @property
    def problem(self) -> dict[str, Any] | None:
        """Code, detail and field of a refusal; None for an answer."""
        return None if self.ok else cast("dict[str, Any]", self.body)


class InProcessApi:
    """``app`` returns the application below its outermost middleware: a page has one slot and one log line."""

    def __init__(self, app: Callable[[], ASGIApp]) -> None:
        self._app = app

    async def call(
        self,
        page: Scope,
        principal: Principal,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> ApiAnswer:
        """Call a route as ``principal``, on behalf of the request with the scope ``page``."""
        outer = cast("HTTPScope", page)
        host = next((value for name, value in outer["headers"] if name == b"host"), b"localhost")
        sent = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        scope: dict[str, Any] = {
            **{name: outer[name] for name in _PASSED_ON if name in outer},
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", host), *((name.encode(), value.encode()) for name, value in sent.items())],
            "path_params": {},
            "session": None,
            "auth": None,
            "user": None,
            "extensions": {},
            "state": {
                "request_id": outer["state"]["request_id"],
                "slot": outer["state"]["slot"],
                "principal": principal,
            },
        }
        answer = _Collected()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app()(cast("Scope", scope), receive, answer.send)
        return answer.whole()


class _Collected:
    """An ASGI ``send`` that keeps the answer."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))

    def whole(self) -> ApiAnswer:
        return ApiAnswer(status=self._status, headers=self._headers, content=b"".join(self._parts))
