"""The connections to all engines: kept between requests, bounded, and a few to spare for what frees the others.

What happens on one of them is its own business. Fails closed: who finds none free is refused at once.
"""

import asyncio
import errno
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from data_plane.gateway.upstream.connection import EngineConnection, EngineResponse

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Failures to connect that say nothing of the engine."""


class ConnectionsExhausted(ConnectionError):
    """There is no connection left on our side. No engine is to blame."""


class ConnectionPool:
    """Connections to all engines. ``connections_max`` bounds those that are open, idle ones included; ``spare`` more
    are for what must get through even then. An engine waits while ``unread_max_bytes`` of its answer are untaken.
    """

    def __init__(
        self,
        *,
        connect_s: float,
        keepalive_s: float,
        connections_max: int,
        spare: int,
        head_max_bytes: int,
        unread_max_bytes: int,
    ) -> None:
        self.head_max_bytes = head_max_bytes
        self.unread_max_bytes = unread_max_bytes
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._connections_max = connections_max
        self._spare = spare
        self._idle: dict[str, dict[EngineConnection, None]] = {}  # by origin, the last used at the end
        self._open: set[EngineConnection] = set()
        self._connecting = 0
        self._sweeping: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, origin: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, spare: bool = False
    ) -> EngineResponse:
        """Send a request; its answer's head has come when this returns. Raises OSError, of which EngineLost and
        ConnectionsExhausted are some. ``spare`` says that it may take one of the spare connections.
        """
        line = await self.ask(method, origin, path, headers, body, spare=spare)
        try:
            return await line.answer()
        except BaseException:
            line.drop()
            raise

    async def ask(
        self, method: str, origin: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, spare: bool = False
    ) -> EngineConnection:
        """Send a request, and return the connection on which the answer comes: close it in the end. Raises OSError."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        assert fields.count("\n") == len(headers), "what we send in headers is our own, and has no line ends"
        line = self._take(origin) or await self._connect(origin, self._connections_max + (self._spare if spare else 0))
        head = f"{method} {path} HTTP/1.1\r\nhost: {line.host}\r\n{fields}content-length: {len(body)}\r\n\r\n"
        line.send(head.encode("latin-1") + body)
        return line

    def close(self) -> None:
        """Drop every connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for line in list(self._open):
            line.drop()

    def _take(self, origin: str) -> EngineConnection | None:
        oldest = time.monotonic() - self._keepalive_s
        while idle := self._idle.get(origin):
            line, _ = idle.popitem()
            if not idle:
                del self._idle[origin]
            if not line.lost and line.idle_since > oldest:
                return line
            line.drop()
        return None

    async def _connect(self, origin: str, connections_max: int) -> EngineConnection:
        if len(self._open) + self._connecting >= connections_max and not self._drop_idle():
            raise ConnectionsExhausted(f"{connections_max} connections to engines are open")
        url = urlsplit(origin)
        tls = url.scheme == "https"
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_s):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: EngineConnection(self, origin, url.netloc),
                    url.hostname or "",
                    url.port or (443 if tls else 80),
                    ssl=True if tls else None,
                )
        except OSError as error:
            if error.errno in _OURS:
                raise ConnectionsExhausted(f"this machine has no connection left: {error}") from error
            raise
        finally:
            self._connecting -= 1
        return line

    def _drop_idle(self) -> bool:
        """Make room by dropping one idle connection, the longest unused of some engine's."""
        line = next((line for idle in self._idle.values() for line in idle), None)
        if line is not None:
            line.drop()
        return line is not None

    def opened(self, line: EngineConnection) -> None:
        """A connection has been made."""
        self._open.add(line)

    def ended(self, line: EngineConnection) -> None:
        """A connection is no more."""
        self._open.discard(line)
        if (idle := self._idle.get(line.origin)) is not None:
            idle.pop(line, None)
            if not idle:
                del self._idle[line.origin]

    def give_back(self, line: EngineConnection) -> None:
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
