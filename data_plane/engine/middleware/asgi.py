"""HTTP over plain ASGI for the middleware: bounded request bodies, JSON answers, error answers with a code."""

import json
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from core.errors import AppError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class CallerDisconnected(Exception):
    """The caller closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first header with this lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


async def read_body(receive: Receive, bytes_max: int) -> bytes | None:
    """The whole request body; None when it is larger than ``bytes_max``. Raises ``CallerDisconnected``."""
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerDisconnected
        chunks.append(bytes(message.get("body", b"")))
        size += len(chunks[-1])
        if size > bytes_max:
            return None
        if not message.get("more_body"):
            return b"".join(chunks)


async def send_json(
    send: Send, status: int, content: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a complete JSON answer."""
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", b"application/json"), *headers]})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def send_error(send: Send, error: AppError) -> None:
    """Send ``{"error": {"code", "message", …}}``, with ``Retry-After`` and ``eta_s`` where the error has them."""
    detail: dict[str, Any] = {"code": error.code, "message": error.message}
    if (eta_s := getattr(error, "eta_s", None)) is not None:
        detail["eta_s"] = eta_s
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_s is not None:
        headers = ((b"retry-after", str(math.ceil(error.retry_after_s)).encode()),)
    await send_json(send, error.status, {"error": detail}, headers)
