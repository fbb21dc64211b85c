"""One pipelined connection to Redis for the request path, shared by all requests of the process: commands are sent at
once, and replies come in order. There is no pool to wait for, and one write carries all commands of one turn of the
loop.

Fails closed and fast: a lost connection fails every command on it, and the next command opens another.
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
_DEADLINE_CHECK_S: Final = 0.005  # between checks for commands whose deadline has passed


class RedisConnection:
    """Commands over one connection, opened when first needed."""

    def __init__(self, url: str, *, connect_s: float, stalled_s: float, pending_max: int) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._tls = None
        if url.startswith("rediss://"):  # redis-py reads the same option of the URL
            self._tls = ssl.create_default_context(cafile=self._options.get("ssl_ca_certs"))
        self._connect_s = connect_s
        self._stalled_s = stalled_s
        self._pending_max = pending_max
        self._opening = asyncio.Lock()
        self._wire: _Wire | None = None
        self._connections = 0

    async def call(self, *command: Argument, due: float = math.inf) -> Any:  # a reply has any of Redis's types
        """Send one command and wait for its reply. Raises redis.RedisError, or TimeoutError without a reply at ``due``
        (monotonic). A command whose caller stops waiting is not withdrawn: Redis may still run it.
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
        """The number of this connection; each new one may reach a server that has restarted. 0 without a connection."""
        return 0 if self._wire is None or self._wire.lost else self._connections

    async def close(self) -> None:
        """Close the connection. Commands that wait for a reply fail."""
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
        self.pending: deque[tuple[asyncio.Future[Any], float, float]] = (
            deque()
        )  # each with the times when it was sent and when it is due
        self.lost = False
        self._out: list[bytes] = []
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._checking = False

    def send(self, command: tuple[Argument, ...], due: float = math.inf) -> "asyncio.Future[Any]":
        """Write a command. The future receives its reply. Raises what packing raises, before a reply is awaited."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost or self._transport is None:
            future.set_exception(ConnectionLost("the connection to Redis is lost"))
            return future
        packed = hiredis.pack_command(command)
        self.pending.append((future, time.monotonic(), due))
        if due < math.inf and not self._checking:
            self._checking = True
            self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadlines)
        if not self._out:
            self._loop.call_soon(self._flush)  # one write for all commands of this turn of the loop
        self._out.append(packed)
        return future

    def _flush(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _check_deadlines(self) -> None:
        """Fail commands past their deadline. One timer serves all: one for each would cost more than the command."""
        self._checking, now = False, time.monotonic()
        for future, _, due in self.pending:
            if due <= now and not future.done():
                future.set_exception(TimeoutError("Redis did not answer in time"))
        if self.pending:
            self._checking = True
            self._loop.call_later(_DEADLINE_CHECK_S, self._check_deadlines)

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
                continue  # its caller has stopped waiting
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                future.set_exception(NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text))
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        while self.pending:
            future, *_ = self.pending.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to Redis is lost: {exc!r}"))
