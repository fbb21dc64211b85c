"""One HTTP connection to an engine: one request at a time, and responses whose bodies are read as they arrive.

Fails closed: a connection that breaks, or carries anything but HTTP, fails its waiting request and is not used again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools


class EngineLost(ConnectionError):
    """The connection to an engine broke, or what arrived was not an HTTP response."""


class EngineResponse:
    """A response whose headers have arrived. Read it to its end, or close it."""

    def __init__(self, connection: "EngineConnection", status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers  # names in lower case
        self._connection = connection

    async def some(self) -> bytes:
        """The next bytes of the body, as soon as there are any; empty at its end. Raises EngineLost if the connection
        breaks before that.
        """
        connection = self._connection
        while not (data := connection.take()) and not connection.whole:
            await connection.more()
        return data

    async def pour(self, into: Callable[[bytes], bool]) -> bool:
        """Pass the body to ``into`` piece by piece as it arrives, without waking a task for each. True at its end;
        False if ``into`` returned false, because it wants no more now. Raises EngineLost, and whatever ``into`` raises.
        """
        connection = self._connection
        while True:
            if (data := connection.take()) and not into(data):
                return False
            if connection.whole:
                return True
            if not await connection.more(into):
                return False

    async def read(self, bytes_max: int) -> bytes:
        """The beginning of the body, up to ``bytes_max``. Raises EngineLost."""
        body = bytearray()
        while len(body) < bytes_max and (data := await self.some()):
            body += data
        return bytes(body[:bytes_max])

    def close(self) -> None:
        """Release the connection. If the response has not been read to its end, the connection is dropped."""
        self._connection.release(self)


class ConnectionOwner(Protocol):
    """The owner of the connections, which is notified of their changes."""

    head_max_bytes: int
    unread_max_bytes: int

    def opened(self, connection: "EngineConnection") -> None:
        """A connection has been established."""

    def released(self, connection: "EngineConnection") -> None:
        """A connection is idle and ready for its next request."""

    def ended(self, connection: "EngineConnection") -> None:
        """A connection has ended."""


class EngineConnection(asyncio.Protocol):
    """One connection. It parses responses and wakes the task that waits for one."""

    def __init__(self, owner: ConnectionOwner, origin: str, host: str) -> None:
        self.origin = origin
        self.host = host
        self.idle_since = 0.0
        self.lost = False
        self.whole = True  # the response is complete, or no request has been sent
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[bool] | None = None
        self._into: Callable[[bytes], bool] | None = None
        self._answer: EngineResponse | None = None
        self._headers: dict[str, str] = {}
        self._kept_bytes = 0  # bytes that the parser buffers outside bodies: headers or trailers
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._kept = True
        self._error: Exception | None = None

    def send(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self.whole, self._answer, self._headers, self._kept_bytes = False, None, {}, 0
        self._transport.write(request)

    async def answer(self) -> EngineResponse:
        """The response, once its headers have arrived. A caller that was cancelled may call it again. Raises
        EngineLost.
        """
        while (answer := self._answer) is None:
            await self.more()
        return answer

    async def more(self, into: Callable[[bytes], bool] | None = None) -> bool:
        """Wait for the next bytes, or, while ``into`` consumes them directly, for the end: false if ``into`` wants no
        more. Raises EngineLost.
        """
        if self.lost:
            raise EngineLost(f"the connection to the engine broke: {self._error!r}")
        self._waiter, self._into = self._loop.create_future(), into
        try:
            return await self._waiter
        finally:
            self._waiter = self._into = None

    def take(self) -> bytes:
        """The bytes of the body that have arrived and have not been read."""
        unread = self._unread
        if not unread:
            return b""
        data = unread[0] if len(unread) == 1 else b"".join(unread)
        self._unread, self._unread_bytes = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def release(self, answer: EngineResponse) -> None:
        """Release the connection after this response: keep it for the next request, or drop it."""
        if answer is not self._answer:
            return
        self._answer = None
        if self.whole and self._kept and not self.lost and not self._unread:
            self.idle_since = time.monotonic()
            self._owner.released(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection now."""
        self._lose(None)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)
        del self._parser  # the parser refers to this object: cut the cycle

    def data_received(self, data: bytes) -> None:
        if self.whole:  # data without a request
            self.drop()
            return
        self._kept_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(error)
            self.drop()
            return
        if self._kept_bytes > self._owner.head_max_bytes:
            self._lose(EngineLost("the response headers are too large"))
            self.drop()
            return
        if self._unread_bytes > self._owner.unread_max_bytes and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._into is None or not self._unread:
            waiter.set_result(True)
        else:
            self._pass_on(self._into, waiter)

    def _pass_on(self, into: Callable[[bytes], bool], waiter: "asyncio.Future[bool]") -> None:
        try:
            wanted = into(self.take())
        except Exception as error:  # noqa: BLE001 - the waiter's to handle
            waiter.set_exception(error)
        else:
            if self.whole or not wanted:
                waiter.set_result(wanted)

    def on_message_begin(self) -> None:
        if self._answer is not None:
            raise EngineLost("two responses to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is None:  # trailers are ignored
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer, self._kept_bytes = EngineResponse(self, status, self._headers), 0
        else:
            self._headers = {}  # of an interim response (1xx)

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        self._unread.append(body)
        self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self.whole, self._kept_bytes = True, 0
            self._kept = self._parser.should_keep_alive()

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost, self._error = True, error
        self._owner.ended(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)
