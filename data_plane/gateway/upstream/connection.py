"""One connection to an engine: one request at a time, and answers whose bodies are read as they come.

Fails closed: a connection that breaks, or says what is not HTTP, fails whatever waits on it, and is not used again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools


class EngineLost(ConnectionError):
    """The connection to an engine broke, or what came was not an HTTP answer."""


class EngineResponse:
    """An answer whose head has come. Read it to its end, or close it."""

    def __init__(self, line: "EngineConnection", status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers  # names in lower case
        self._line = line

    async def some(self) -> bytes:
        """What has come of the body since, as soon as there is any; nothing at its end. Raises EngineLost where that is
        too early.
        """
        line = self._line
        while not (data := line.take()) and not line.whole:
            await line.more()
        return data

    async def pour(self, into: Callable[[bytes], bool]) -> bool:
        """Hand the body to ``into`` piece by piece in the moment in which each comes, without waking anybody. True at
        its end, False where ``into`` returned false: it wants no more now. Raises EngineLost, and what ``into`` raises.
        """
        line = self._line
        while True:
            if (data := line.take()) and not into(data):
                return False
            if line.whole:
                return True
            if not await line.more(into):
                return False

    async def read(self, bytes_max: int) -> bytes:
        """The body's beginning, up to a size. Raises EngineLost."""
        body = bytearray()
        while len(body) < bytes_max and (data := await self.some()):
            body += data
        return bytes(body[:bytes_max])

    def close(self) -> None:
        """Give the connection back; one whose answer has not been read to its end is dropped."""
        self._line.leave(self)


class ConnectionOwner(Protocol):
    """Who has the connections, and is told what becomes of them."""

    head_max_bytes: int
    unread_max_bytes: int

    def opened(self, line: "EngineConnection") -> None:
        """A connection has been made."""

    def give_back(self, line: "EngineConnection") -> None:
        """A connection waits for its next request."""

    def ended(self, line: "EngineConnection") -> None:
        """A connection is no more."""


class EngineConnection(asyncio.Protocol):
    """One connection. It parses, and wakes whoever waits for its answer."""

    def __init__(self, lines: ConnectionOwner, origin: str, host: str) -> None:
        self.origin = origin
        self.host = host
        self.idle_since = 0.0
        self.lost = False
        self.whole = True  # the answer, or nothing has been asked
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[bool] | None = None
        self._into: Callable[[bytes], bool] | None = None
        self._answer: EngineResponse | None = None
        self._headers: dict[str, str] = {}
        self._kept_bytes = 0  # by the parser, since the last of a body: of a head, or of what follows a body
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._kept = True
        self._error: Exception | None = None

    def send(self, request: bytes) -> None:
        """Ask; nothing has come of an answer yet."""
        assert self._transport is not None
        self.whole, self._answer, self._headers, self._kept_bytes = False, None, {}, 0
        self._transport.write(request)

    async def answer(self) -> EngineResponse:
        """The answer, once its head has come; whoever was cancelled waiting may wait again. Raises EngineLost."""
        while (answer := self._answer) is None:
            await self.more()
        return answer

    async def more(self, into: Callable[[bytes], bool] | None = None) -> bool:
        """Wait for something to come, or for what ``into`` does not take at once: false where it wants no more. Raises
        EngineLost.
        """
        if self.lost:
            raise EngineLost(f"the connection to the engine broke: {self._error!r}")
        self._waiter, self._into = self._loop.create_future(), into
        try:
            return await self._waiter
        finally:
            self._waiter = self._into = None

    def take(self) -> bytes:
        """What has come of the body and has not been read."""
        unread = self._unread
        if not unread:
            return b""
        data = unread[0] if len(unread) == 1 else b"".join(unread)
        self._unread, self._unread_bytes = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def leave(self, answer: EngineResponse) -> None:
        """Whoever had this answer does not want it any more."""
        if answer is not self._answer:
            return
        self._answer = None
        if self.whole and self._kept and not self.lost and not self._unread:
            self.idle_since = time.monotonic()
            self._lines.give_back(self)
        else:
            self.drop()

    def drop(self) -> None:
        """End the connection now."""
        self._lose(None)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._lines.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)
        del self._parser  # which knows this in turn

    def data_received(self, data: bytes) -> None:
        if self.whole:  # nobody asked
            self.drop()
            return
        self._kept_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(error)
            self.drop()
            return
        if self._kept_bytes > self._lines.head_max_bytes:
            self._lose(EngineLost("the headers of an answer are too large"))
            self.drop()
            return
        if self._unread_bytes > self._lines.unread_max_bytes and not self._paused and self._transport is not None:
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
            raise EngineLost("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is None:  # what follows a body says nothing to us
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer, self._kept_bytes = EngineResponse(self, status, self._headers), 0
        else:
            self._headers = {}  # of a word in between

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
        self._lines.ended(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)
