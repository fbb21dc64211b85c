"""One connection to Redis for the hot path, shared by every request of the process: commands go out as they come, and
replies come back in order. No pool to wait for, and what is sent in one turn of the loop travels together.

Fails closed and fast: a lost line fails everything on it, and the next command opens another.
"""

import asyncio
import math
import ssl
import time
from collections import deque
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import parse_url
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, ResponseError

Argument = str | bytes | int
_LOOK_S: Final = 0.005  # between looks for whom Redis has not answered in time


class RedisConnection:
    """Commands over one connection, opened when first needed."""

    def __init__(self, url: str, *, connect_s: float, stalled_s: float, pending_max: int) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._tls = ssl.create_default_context() if url.startswith("rediss://") else None
        self._connect_s = connect_s
        self._stalled_s = stalled_s
        self._pending_max = pending_max
        self._opening = asyncio.Lock()
        self._wire: _Wire | None = None
        self._connections = 0

    async def call(self, *command: Argument, due: float = math.inf) -> Any:  # a reply is whatever the server says
        """Send one command and wait for its reply. Raises redis.RedisError, or TimeoutError where none has come when it
        was ``due`` (monotonic). Whoever stops waiting leaves the command where it is: it may still run.
        """
        wire = self._wire
        if wire is None or wire.lost:
            async with asyncio.timeout(None if due == math.inf else due - time.monotonic()):
                wire = await self._open()
        if len(wire.pending) >= self._pending_max or wire.waits_s() > self._stalled_s:
            wire.close()
            raise ConnectionLost("Redis does not answer")
        return await wire.send(command, due)

    @property
    def connection(self) -> int:
        """Which connection this is: behind each may be a server that restarted. 0 while there is none."""
        return 0 if self._wire is None or self._wire.lost else self._connections

    async def close(self) -> None:
        """Close the line; whoever waits on it fails."""
        if self._wire is not None:
            self._wire.close()

    async def _open(self) -> "_Wire":
        async with self._opening:
            if self._wire is not None and not self._wire.lost:
                return self._wire
            options = self._options
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(self._connect_s):
                    _, wire = await loop.create_connection(
                        _Wire, options.get("host", "localhost"), options.get("port", 6379), ssl=self._tls
                    )
                    await self._greet(wire)
            except OSError as error:  # TimeoutError is one
                raise ConnectionLost(f"Redis cannot be reached: {error!r}") from error
            self._wire = wire
            self._connections += 1
            return wire

    async def _greet(self, wire: "_Wire") -> None:
        options = self._options
        try:
            if password := options.get("password"):
                user = options.get("username")
                await wire.send(("AUTH", user, password) if user else ("AUTH", password))
            if database := options.get("db", 0):
                await wire.send(("SELECT", database))
        except BaseException:
            wire.close()
            raise


class _Wire(asyncio.Protocol):
    """The bytes of one connection."""

    def __init__(self) -> None:
        self.pending: deque[tuple[asyncio.Future[Any], float, float]] = deque()  # with times: sent at, and due at
        self.lost = False
        self._out: list[bytes] = []
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._looking = False

    def send(self, command: tuple[Argument, ...], due: float = math.inf) -> "asyncio.Future[Any]":
        """Write a command; the future has its reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost or self._transport is None:
            future.set_exception(ConnectionLost("the line to Redis is lost"))
            return future
        self.pending.append((future, time.monotonic(), due))
        if due < math.inf and not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_S, self._look)
        if not self._out:
            self._loop.call_soon(self._flush)  # one write for all that is sent in this turn of the loop
        self._out.append(hiredis.pack_command(command))
        return future

    def _flush(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _look(self) -> None:
        """Tell those whose time is over. One timer for all of them, since one for each costs more than the command."""
        self._looking, now = False, time.monotonic()
        for future, _, due in self.pending:
            if due <= now and not future.done():
                future.set_exception(TimeoutError("Redis did not answer in time"))
        if self.pending:
            self._looking = True
            self._loop.call_later(_LOOK_S, self._look)

    def waits_s(self) -> float:
        """How long the oldest command has waited for its reply."""
        return time.monotonic() - self.pending[0][1] if self.pending else 0.0

    def close(self) -> None:
        """Drop the connection now."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future, *_ = self.pending.popleft()
            if future.done():
                continue  # nobody waits for it any more
            if isinstance(reply, hiredis.ReplyError):
                said = str(reply)
                future.set_exception(NoScriptError(said) if said.startswith("NOSCRIPT") else ResponseError(said))
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        while self.pending:
            future, *_ = self.pending.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(f"the line to Redis is lost: {exc!r}"))
