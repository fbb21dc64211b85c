"""The caller's end of one request over ASGI: reading its body within bounds, answering, and noticing that it has gone.

It speaks OpenAI's shapes; a subclass may speak another's.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from litestar.types import HTTPScope, Receive, Send

from core.errors import AppError, TooLarge, UnsupportedMedia
from data_plane.gateway.errors import (
    Headers,
    HeadersTooLarge,
    RequestTimeout,
    error_body,
    error_event,
    error_headers,
)

CLIENT_GONE: Final = 499  # nginx's word, in our metrics, for a caller who left before there was a response


class ClientGone(Exception):
    """The caller hung up before its request was whole, or before it had a place."""


@dataclass(slots=True)
class Recording:
    """What is sent, as long as it stays within ``bytes_max``; ``on_whole`` is awaited before the last of it goes out.
    An answer that is or becomes an error is not recorded.
    """

    bytes_max: int
    on_whole: Callable[["Recording"], Awaitable[None]]
    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    too_large: bool = False

    def add(self, data: bytes) -> None:
        """Keep ``data``, or nothing at all once it is too much."""
        if len(self.body) + len(data) > self.bytes_max:
            self.too_large = True
            self.body.clear()
        if not self.too_large:
            self.body += data


class Client:
    """One request's ASGI channel. ``started`` says whether a response has begun."""

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send, headers: Headers) -> None:
        self.request_headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.method: str = scope["method"]
        self.path = unquote(scope["raw_path"].decode("latin-1"))
        self.started = False
        self.status = 0  # of the response
        self.body_read = False
        self.body_sha256 = b""  # of one that came with an Idempotency-Key
        self.recording: Recording | None = None
        self._receive = receive
        self._send = send
        self._headers = headers  # sent with every response

    def check_headers(self, *, count_max: int, bytes_max: int) -> None:
        """Refuse requests whose headers are too many or too large. Raises HeadersTooLarge."""
        headers = self.request_headers
        if len(headers) > count_max or sum(len(name) + len(value) for name, value in headers) > bytes_max:
            raise HeadersTooLarge(f"At most {count_max} headers and {bytes_max} bytes of them are accepted.")

    async def read_json_bytes(self, *, bytes_max: int, timeout_s: float) -> bytes:
        """The whole body. Raises TooLarge, UnsupportedMedia, RequestTimeout or ClientGone."""
        for name, value in self.request_headers:
            if name == b"content-length" and (not value.isdigit() or int(value) > bytes_max):
                raise _too_large(bytes_max)
            if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
                raise UnsupportedMedia(
                    "Compressed bodies are not accepted; send plain JSON.", code="encoding_not_allowed"
                )
        if _content_type(self.request_headers) != b"application/json":
            raise UnsupportedMedia(
                "Send the body as `Content-Type: application/json`.", code="content_type_not_allowed"
            )
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message: Any = await self._receive()  # ASGI's union of dicts
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    body += message.get("body", b"")
                    if len(body) > bytes_max:
                        raise _too_large(bytes_max)
                    if not message.get("more_body", False):
                        self.body_read = True
                        if any(name == b"idempotency-key" for name, _ in self.request_headers):
                            self.body_sha256 = hashlib.sha256(body).digest()
                        return bytes(body)
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {timeout_s:g} s.", retryable=True) from None

    def watch(self, on_gone: Callable[[], None]) -> "asyncio.Task[None]":
        """Call ``on_gone`` when the caller hangs up. Cancel the task before the response's last byte."""
        return asyncio.create_task(self._watch(on_gone))

    async def _watch(self, on_gone: Callable[[], None]) -> None:
        while True:
            message: Any = await self._receive()  # ASGI's union of dicts
            if message["type"] == "http.disconnect":
                on_gone()
                return

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; a connection whose body was not read is not kept."""
        self.started, self.status = True, status
        if self.recording is not None:
            self.recording.status, self.recording.headers = status, headers
        if not self.body_read and (self.method not in ("GET", "HEAD") or self._announces_body()):
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": self._headers + headers})

    def _announces_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.request_headers
        )

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send bytes of the body; waits while the caller reads slowly."""
        if self.recording is not None:
            self.recording.add(body)
            if not more:
                await self.recording.on_whole(self.recording)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole JSON response."""
        await self.start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
        )
        await self.write(body, more=False)

    async def deliver(self, answer: bytes, headers: Headers) -> None:
        """Send a whole completion."""
        await self.respond(200, answer, headers)

    async def replay(self, recorded: Recording, headers: Headers) -> None:
        """Send what was recorded of an earlier answer, byte for byte."""
        await Client.start(self, recorded.status, [*recorded.headers, *headers])
        await Client.write(self, bytes(recorded.body), more=False)

    async def fail(self, error: AppError) -> None:
        """Answer with an error; nothing has been sent yet."""
        self.recording = None
        await self.respond(error.status, error_body(error), error_headers(error))

    async def break_off(self, error: AppError) -> None:
        """End a stream that has begun with an error."""
        self.recording = None
        await self.write(error_event(error), more=False)


def _content_type(headers: Headers) -> bytes:
    value = next((value for name, value in headers if name == b"content-type"), b"")
    return value.partition(b";")[0].strip().lower()


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"The body is larger than {bytes_max} bytes.")
