"""HTTP/1.1 to engines, and no more of it than that takes: kept connections, one request at a time on each, and answers
whose bodies are read as they come. What an answer means is upstream's.

Fails closed: a connection that breaks, or says what is not HTTP, fails whatever waits on it, and is not used again.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools


class EngineLost(ConnectionError):
    """The connection to an engine broke, or what came was not an HTTP answer."""


class Answer:
    """An answer whose head has come. Read it to its end, or close it."""

    def __init__(self, line: "_Line", status: int, headers: Mapping[str, str]) -> None:
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

    async def read(self, bytes_max: int) -> bytes:
        """The body's beginning, up to a size. Raises EngineLost."""
        body = bytearray()
        while len(body) < bytes_max and (data := await self.some()):
            body += data
        return bytes(body[:bytes_max])

    def close(self) -> None:
        """Give the connection back; one whose answer has not been read to its end is dropped."""
        self._line.leave(self)


class EngineLines:
    """Connections to all engines. ``connections_max`` bounds those that are open, idle ones included; an engine waits
    while ``unread_max_bytes`` of its answer have not been taken.
    """

    def __init__(
        self, *, connect_s: float, keepalive_s: float, connections_max: int, head_max_bytes: int, unread_max_bytes: int
    ) -> None:
        self.head_max_bytes = head_max_bytes
        self.unread_max_bytes = unread_max_bytes
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._connections_max = connections_max
        self._idle: dict[str, dict[_Line, None]] = {}  # by origin; in order, the one that was used last at the end
        self._open: set[_Line] = set()
        self._connecting = 0
        self._sweeping: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, origin: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Send a request; its answer's head has come when this returns. Raises OSError, of which EngineLost is one."""
        line = self._take(origin) or await self._connect(origin)
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        assert fields.count("\n") == len(headers), "what we send in headers is our own, and has no line ends"
        head = f"{method} {path} HTTP/1.1\r\nhost: {line.host}\r\n{fields}content-length: {len(body)}\r\n\r\n"
        try:
            return await line.ask(head.encode("latin-1") + body)
        except BaseException:
            line.drop()
            raise

    def close(self) -> None:
        """Drop every connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for line in list(self._open):
            line.drop()

    def _take(self, origin: str) -> "_Line | None":
        idle, oldest = self._idle.get(origin), time.monotonic() - self._keepalive_s
        while idle:
            line, _ = idle.popitem()
            if not line.lost and line.idle_since > oldest:
                return line
            line.drop()
        return None

    async def _connect(self, origin: str) -> "_Line":
        if len(self._open) + self._connecting >= self._connections_max and not self._drop_idle():
            raise EngineLost(f"{self._connections_max} connections to engines are open")
        url = urlsplit(origin)
        tls = url.scheme == "https"
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_s):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: _Line(self, origin, url.netloc),
                    url.hostname or "",
                    url.port or (443 if tls else 80),
                    ssl=True if tls else None,
                )
        finally:
            self._connecting -= 1
        return line

    def _drop_idle(self) -> bool:
        """Make room by dropping one idle connection, the longest unused of some engine's."""
        line = next((line for idle in self._idle.values() for line in idle), None)
        if line is not None:
            line.drop()
        return line is not None

    def opened(self, line: "_Line") -> None:
        """A connection has been made."""
        self._open.add(line)

    def ended(self, line: "_Line") -> None:
        """A connection is no more."""
        self._open.discard(line)
        if (idle := self._idle.get(line.origin)) is not None:
            idle.pop(line, None)
            if not idle:
                del self._idle[line.origin]

    def give_back(self, line: "_Line") -> None:
        """A connection waits for its next request."""
        self._idle.setdefault(line.origin, {})[line] = None
        if self._sweeping is None:  # an engine that hangs closes none by itself
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Drop what has been idle for too long, and look again while anything is idle."""
        self._sweeping, oldest = None, time.monotonic() - self._keepalive_s
        for line in [line for idle in self._idle.values() for line in idle if line.idle_since <= oldest]:
            line.drop()
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep)


class _Line(asyncio.Protocol):
    """One connection. It parses, and wakes whoever waits for its answer."""

    def __init__(self, lines: EngineLines, origin: str, host: str) -> None:
        self.origin = origin
        self.host = host
        self.idle_since = 0.0
        self.lost = False
        self.whole = True  # the answer, or nothing has been asked
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._kept = True
        self._error: Exception | None = None

    async def ask(self, request: bytes) -> Answer:
        assert self._transport is not None
        self._begin()
        self._transport.write(request)
        while (answer := self._answer) is None:
            await self.more()
        return answer

    def _begin(self) -> None:
        """Nothing has come of an answer yet."""
        self.whole, self._answer, self._headers, self._head_bytes = False, None, {}, 0

    async def more(self) -> None:
        """Wait for something to come. Raises EngineLost."""
        if self.lost:
            raise EngineLost(f"the connection to the engine broke: {self._error!r}")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

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

    def leave(self, answer: Answer) -> None:
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

    def data_received(self, data: bytes) -> None:
        if self.whole:  # nobody asked
            self.drop()
            return
        if self._answer is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(error)
            self.drop()
            return
        if self._answer is None and self._head_bytes > self._lines.head_max_bytes:
            self._lose(EngineLost("the head of an answer is too large"))
            self.drop()
            return
        if self._unread_bytes > self._lines.unread_max_bytes and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_begin(self) -> None:
        if self._answer is not None:
            raise EngineLost("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer = Answer(self, status, self._headers)
        else:
            self._headers = {}  # of a word in between

    def on_body(self, body: bytes) -> None:
        self._unread.append(body)
        self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self.whole = True
            self._kept = self._parser.should_keep_alive()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost, self._error = True, error
        self._lines.ended(self)
        self._wake()
