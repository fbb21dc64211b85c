"""The client side of one request: reads the body within limits, answers over ASGI, and detects a disconnect. What ASGI
lacks, or does slowly, goes directly to the connection.

It answers in OpenAI's format; a subclass may use another format.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import unquote

from litestar.types import HTTPScope, Receive, Send

from core.errors import AppError, HeadersTooLarge, RequestTimeout, TooLarge, UnsupportedMedia
from core.line_credential import LineCredential
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.errors import Headers, error_body, error_event, error_headers

CLIENT_GONE: Final = 499  # nginx's status, in the metrics only: the client disconnected before a response began


class ClientGone(Exception):
    """The client disconnected before its request was complete, or before it was placed on a replica."""


@dataclass(slots=True)
class ResponseRecording:
    """A copy of the response, if it stays within ``bytes_max``. ``on_whole`` is awaited before the last part is sent.
    Errors, and responses that end in one, are not recorded.
    """

    bytes_max: int
    on_whole: Callable[["ResponseRecording"], Awaitable[None]]
    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    too_large: bool = False

    def add(self, data: bytes) -> None:
        """Append ``data``; once the response is too large, keep nothing of it."""
        if len(self.body) + len(data) > self.bytes_max:
            self.too_large = True
            self.body.clear()
        if not self.too_large:
            self.body += data


class ClientSocket(Protocol):
    """The socket beneath a request, which its server puts into the request's ``state``."""

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it has arrived and none of it has been read; else None."""

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Call ``on_gone`` once, soon, when the caller hangs up or has done so; None removes the callback."""

    def begin(self, headers: Headers, data: bytes) -> bool:
        """Begin a response of status 200 and no known length with its first piece, else as ``push``; headers' names are
        in lower case, and nothing in them a caller's.
        """

    @property
    def reads(self) -> bool:
        """Whether what is sent now goes out without waiting for the caller to read what was sent before."""

    def push(self, data: bytes) -> bool:
        """Send a piece of a response that has begun; false where ``drained`` should be awaited before more."""

    async def drained(self) -> None:
        """Return once the caller has read enough for more, or is gone."""

    def cut(self) -> None:
        """End the connection at once, whatever is still to be sent."""


class Client:
    """The client of one request. ``started`` says whether a response has begun; the steps add to ``phases``. ``line``
    is set where the client is the batch worker. Such a request runs to its end and stores its answer, even if the
    worker dies meanwhile.
    """

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send, headers: Headers) -> None:
        self.request_headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.method: str = scope["method"]
        self.address: str = (scope.get("client") or ("",))[0]
        self.raw_path, self.query = scope["raw_path"], scope["query_string"]
        self.path = unquote(self.raw_path.decode("latin-1"))
        self.line: LineCredential | None = None
        self.started = False
        self.status = 0  # of the response
        self.phases = RequestPhases()
        self.body_read = False
        self.body_sha256 = b""  # of one that came with an Idempotency-Key
        self.recording: ResponseRecording | None = None
        self._receive = receive
        self._send = send
        self._headers = headers  # sent with every response
        self._connection: ClientSocket = scope["state"].pop("connection")  # which keeps the scope: not both ways

    def check_headers(self, *, count_max: int, bytes_max: int) -> None:
        """Refuse requests whose headers are too many or too large. Raises HeadersTooLarge."""
        headers = self.request_headers
        if len(headers) > count_max or sum(len(name) + len(value) for name, value in headers) > bytes_max:
            raise HeadersTooLarge(f"At most {count_max} headers and {bytes_max} bytes of them are accepted.")

    async def read_json_bytes(self, *, bytes_max: int, timeout_s: float) -> bytes:
        """The complete body. Raises TooLarge, UnsupportedMedia, RequestTimeout or ClientGone."""
        self.announced_bytes(bytes_max)
        headers = dict(self.request_headers)
        if headers.get(b"content-encoding", b"").lower() not in (b"", b"identity"):
            raise UnsupportedMedia("Compressed bodies are not accepted; send plain JSON.", code="encoding_not_allowed")
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise UnsupportedMedia(
                "Send the body as `Content-Type: application/json`.", code="content_type_not_allowed"
            )
        body = self._connection.whole_body()
        if body is None:
            try:
                async with asyncio.timeout(timeout_s):
                    body = b"".join([piece async for piece in self.body_pieces(bytes_max=bytes_max)])
            except TimeoutError:
                raise RequestTimeout(f"The body did not arrive within {timeout_s:g} s.", retryable=True) from None
        elif len(body) > bytes_max:
            raise _too_large(bytes_max)
        self.body_read = True
        if b"idempotency-key" in headers:
            self.body_sha256 = hashlib.sha256(body).digest()
        return body

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Call ``on_gone`` when the client disconnects. It replaces an earlier callback; None removes it."""
        self._connection.watch(None if self.line is not None else on_gone)

    async def body_pieces(self, *, bytes_max: int, idle_s: float | None = None) -> AsyncIterator[bytes]:
        """The body as it arrives, without keeping it. Raises TooLarge, RequestTimeout or ClientGone."""
        count = 0
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    message: Any = await self._receive()  # ASGI's union of dicts
            except TimeoutError:
                raise RequestTimeout(f"Nothing of the body arrived for {idle_s:g} s.", retryable=True) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            count += len(piece := message.get("body", b""))
            if count > bytes_max:
                raise _too_large(bytes_max)
            if piece:
                yield piece
            if not message.get("more_body", False):
                self.body_read = True
                return

    def announced_bytes(self, bytes_max: int) -> int | None:
        """The length of the body that the client announced; None for chunks. Raises TooLarge."""
        for name, value in self.request_headers:
            if name == b"transfer-encoding":
                return None
            if name == b"content-length":
                if not value.isdigit() or int(value) > bytes_max:
                    raise _too_large(bytes_max)
                return int(value)
        return 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers. A connection whose request body was not read is closed afterwards."""
        self.started, self.status = True, status
        if self.recording is not None:
            self.recording.status, self.recording.headers = status, headers
        if not self.body_read and (self.method not in ("GET", "HEAD", "OPTIONS") or self._announces_body()):
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": self._all_headers(headers)})

    def begin(self, headers: Headers, body: bytes) -> bool:
        """Begin a stream with its first piece; else as ``push``, which sends the others, and ``finish`` ends it."""
        self.started, self.status = True, 200
        if self.recording is not None:
            self.recording.status, self.recording.headers = 200, headers
            self.recording.add(body)
        self.phases.first_text_at = time.monotonic()
        return self._connection.begin(self._all_headers(headers), body)

    def _all_headers(self, headers: Headers) -> Headers:
        return [*self._headers, *headers, (b"server-timing", self.phases.header())]

    def _announces_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.request_headers
        )

    @property
    def reads(self) -> bool:
        """Whether the caller has read enough of what was sent for more to go out at once."""
        return self._connection.reads

    def push(self, body: bytes) -> bool:
        """Send a piece of a stream's body; false where the caller reads too slowly: await ``drained`` then."""
        if self.recording is not None:
            self.recording.add(body)
        return self._connection.push(body)

    async def drained(self) -> None:
        """Wait while too much sent data is unread."""
        await self._connection.drained()

    def cut(self) -> None:
        """Close the connection; the client loses unread data."""
        self._connection.cut()

    async def send_piece(self, body: bytes) -> None:
        """Send a piece of a response that ``start`` began, once the client has read most of the earlier ones."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes) -> None:
        """Send the last of the body."""
        if self.recording is not None:
            self.recording.add(body)
            await self.recording.on_whole(self.recording)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def model(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A model of the catalog as this API shows it."""
        return entry

    def models(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The list of all models, or the page that the caller asks for. Raises InvalidRequest."""
        return {"object": "list", "data": entries}

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole JSON response."""
        await self.start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
        )
        await self.finish(body)

    async def deliver(self, answer: bytes, headers: Headers) -> None:
        """Send a whole completion, to the batch worker with its price."""
        if self.line is not None:
            headers = [*headers, (b"x-tenora-price-nanos", b"%d" % self.phases.price_nanos)]
        await self.respond(200, answer, headers)

    def rejects(self, ending: bytes, headers: Headers, error: AppError | None) -> bool:  # noqa: ARG002 - a subclass does
        """Whether the answer, which has ended, is not shown because another model answers instead."""
        return False

    async def replay(self, recorded: ResponseRecording, headers: Headers) -> None:
        """Send an earlier, recorded response, byte for byte."""
        await Client.start(self, recorded.status, [*recorded.headers, *headers])
        await Client.finish(self, bytes(recorded.body))

    async def fail(self, error: AppError) -> None:
        """Answer with an error; nothing has been sent yet."""
        self.recording = None
        await self.respond(error.status, error_body(error), error_headers(error))

    async def break_off(self, error: AppError) -> None:
        """End a stream that has begun with an error."""
        self.recording = None
        await self.finish(error_event(error))


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"The body is larger than {bytes_max} bytes.")
