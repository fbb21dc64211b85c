"""ASGI middleware: what the API confirms is in force. An answer to a change waits until every live gateway has it.

When a gateway does not acknowledge in time, the change stands, and the answer says so: 202, with ``"acknowledged":
false`` and a ``poll_url``. Both fields are added here, after an answer for an ``Idempotency-Key`` was stored, so no
replay repeats them.
"""

from typing import Any, Final, cast

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPResponseBodyEvent, HTTPResponseStartEvent, Message, Receive, Scope, Send

from control_plane.publishing import request_changes
from control_plane.publishing.gateway_ack import Acknowledgement, AckWaiter

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ADMIN: Final = "/api/v1/admin/"


class AcknowledgedAnswers:
    """The middleware. ``waiter`` bounds the wait."""

    def __init__(self, app: ASGIApp, waiter: AckWaiter) -> None:
        self._app = app
        self._waiter = waiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        with request_changes.recorded() as changes:
            await self._app(scope, receive, _Answer(self._waiter, changes, scope["path"], send))


class _Answer:
    """An ASGI ``send`` that holds a successful answer back until its changes are acknowledged."""

    def __init__(self, waiter: AckWaiter, changes: request_changes.RequestChanges, path: str, send: Send) -> None:
        self._waiter = waiter
        self._changes = changes
        self._path = path
        self._send = send
        self._start: HTTPResponseStartEvent | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if not 200 <= message["status"] < 300 or self._changes.last_id is None:
                await self._send(message)
            else:
                self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            part = cast("HTTPResponseBodyEvent", message)
            self._body += part.get("body", b"")
            if not part.get("more_body"):
                await self._finish(self._start, self._changes.last_id)

    async def _finish(self, start: HTTPResponseStartEvent, change_id: int | None) -> None:
        assert change_id is not None, "the start was held back because of it"
        ack = await self._waiter.wait([change_id])
        status, body = start["status"], self._body
        if body or not ack.acknowledged:
            body = _with_acknowledgement(body, ack, poll_url(self._path, change_id))
        if not ack.acknowledged:
            status = 202
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        if body and not self._body:
            headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def poll_url(path: str, change_id: int) -> str:
    """Where the caller of ``path`` can ask whether the change is acknowledged."""
    root = _ADMIN if path.startswith(_ADMIN) else "/api/v1/"
    return f"{root}changes/{change_id}"


def _with_acknowledgement(body: bytes, ack: Acknowledgement, url: str) -> bytes:
    answer: dict[str, Any] = msgspec.json.decode(body) if body else {}
    answer |= {"acknowledged": ack.acknowledged, "gateways": ack.gateways, "waited_ms": ack.waited_ms}
    if not ack.acknowledged:
        answer["poll_url"] = url
    return msgspec.json.encode(answer)
