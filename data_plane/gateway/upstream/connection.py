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

    async def read_chunk(self) -> bytes:
        """The next bytes of the body, as soon as they arrive; empty at its end. Raises EngineLost if the connection
        breaks before the end.
        """
        connection = self._connection
        while not (data := connection.take_unread()) and not connection.complete:
            await connection.wait_for_data()
        return data

    async def forward(self, consume: Callable[[bytes], bool]) -> bool:
        """Pass each piece of the body to ``consume`` as it arrives, without waking a task for each. Returns True at the
        end of the body, and False once ``consume`` returns False to pause. Raises EngineLost and the errors of
        ``consume``.
        """
        connection = self._connection
        while True:
            if (data := connection.take_unread()) and not consume(data):
                return False
            if connection.complete:
                return True
            if not await connection.wait_for_data(consume):
                return False

    async def read(self, bytes_max: int) -> bytes:
        """The beginning of the body, up to ``bytes_max``. Raises EngineLost."""
        body = bytearray()
        while len(body) < bytes_max and (data := await self.read_chunk()):
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
        self.complete = True  # the response is complete, or no request has been sent
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[bool] | None = None
        self._consume: Callable[[bytes], bool] | None = None
        self._response: EngineResponse | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0  # bytes that the parser buffers outside bodies: headers or trailers
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._keep_alive = True
        self._full: asyncio.Future[None] | None = None  # while the peer takes nothing of a request's body
        self._error: Exception | None = None

    def send(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self.complete, self._response, self._headers, self._head_bytes = False, None, {}, 0
        self._transport.write(request)

    async def write(self, piece: bytes) -> bool:
        """Send a piece of a request's body, and wait until the peer has taken most of what was sent. False where it
        wants nothing further: its response has arrived, or the connection broke.
        """
        assert self._transport is not None
        if self.lost or self._response is not None:
            return False
        self._transport.write(piece)
        if self._full is not None:
            await self._full
        return not self.lost and self._response is None

    def pause_writing(self) -> None:
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)

    async def response(self) -> EngineResponse:
        """The response, once its headers have arrived. A caller that was cancelled may call it again. Raises
        EngineLost.
        """
        while (response := self._response) is None:
            await self.wait_for_data()
        return response

    async def wait_for_data(self, consume: Callable[[bytes], bool] | None = None) -> bool:
        """Wait for the next bytes. With ``consume``, pass the bytes to it as they arrive, and wait for the end of the
        body (True) or until ``consume`` returns False to pause. Raises EngineLost.
        """
        if self.lost:
            raise EngineLost(f"the connection to the engine broke: {self._error!r}")
        self._waiter, self._consume = self._loop.create_future(), consume
        try:
            return await self._waiter
        finally:
            self._waiter = self._consume = None

    def take_unread(self) -> bytes:
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

    def release(self, response: EngineResponse) -> None:
        """Release the connection after this response: keep it for the next request, or drop it."""
        if response is not self._response:
            return
        self._response = None
        if self.complete and self._keep_alive and not self.lost and not self._unread:
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
        if self.complete:  # data without a request
            self.drop()
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(error)
            self.drop()
            return
        if self._head_bytes > self._owner.head_max_bytes:
            self._lose(EngineLost("the response headers are too large"))
            self.drop()
            return
        if self._unread_bytes > self._owner.unread_max_bytes and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._consume is None or not self._unread:
            waiter.set_result(True)
        else:
            self._consume_unread(self._consume, waiter)

    def _consume_unread(self, consume: Callable[[bytes], bool], waiter: "asyncio.Future[bool]") -> None:
        try:
            wanted = consume(self.take_unread())
        except Exception as error:  # noqa: BLE001 - the waiter's to handle
            waiter.set_exception(error)
        else:
            if self.complete or not wanted:
                waiter.set_result(wanted)

    def on_message_begin(self) -> None:
        if self._response is not None:
            raise EngineLost("two responses to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:  # trailers are ignored
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._response, self._head_bytes = EngineResponse(self, status, self._headers), 0
            self.resume_writing()
        else:
            self._headers = {}  # of an interim response (1xx)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._unread.append(body)
        self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._response is not None:
            self.complete, self._head_bytes = True, 0
            self._keep_alive = self._parser.should_keep_alive()

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost, self._error = True, error
        self._owner.ended(self)
        self.resume_writing()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)
