"""The pool of connections to all engines: kept alive between requests, bounded, with some reserved for aborts and
health checks, which free the others.

connection.py holds one connection. Fails closed: a request that finds no free connection is refused at once.
"""

import asyncio
import errno
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from data_plane.gateway.upstream.connection import EngineConnection, EngineResponse

_LOCAL_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Connection errors caused by this machine, not by the engine."""


class ConnectionsExhausted(ConnectionError):
    """No connection is left in this process or on this machine. No engine caused it."""


class ConnectionPool:
    """Connections to all engines. At most ``connections_max`` are open, idle ones included. ``spare`` more are reserved
    for requests that must get through even then. An engine has to wait while ``unread_max_bytes`` of its response are
    unread.
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
        """Send a request and return the response once its headers have arrived. ``spare`` allows a reserved connection.
        Raises OSError, for example EngineLost or ConnectionsExhausted.
        """
        connection = await self.send(method, origin, path, headers, body, spare=spare)
        try:
            return await connection.response()
        except BaseException:
            connection.drop()
            raise

    async def send(
        self, method: str, origin: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, spare: bool = False
    ) -> EngineConnection:
        """Send a request, and return the connection that will carry the response. The caller closes it. Raises
        OSError.
        """
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        assert fields.count("\n") == len(headers), "header values are the gateway's own, without line breaks"
        connection = await self.open(origin, spare=spare)
        head = f"{method} {path} HTTP/1.1\r\nhost: {connection.host}\r\n{fields}content-length: {len(body)}\r\n\r\n"
        connection.send(head.encode("latin-1") + body)
        return connection

    async def open(self, origin: str, *, spare: bool = False) -> EngineConnection:
        """A connection for one request, which the caller sends and closes. Raises OSError."""
        return self._acquire_idle(origin) or await self._connect(
            origin, self._connections_max + (self._spare if spare else 0)
        )

    def close(self) -> None:
        """Drop every connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.drop()

    def _acquire_idle(self, origin: str) -> EngineConnection | None:
        oldest = time.monotonic() - self._keepalive_s
        while idle := self._idle.get(origin):
            connection, _ = idle.popitem()
            if not idle:
                del self._idle[origin]
            if not connection.lost and connection.idle_since > oldest:
                return connection
            connection.drop()
        return None

    async def _connect(self, origin: str, connections_max: int) -> EngineConnection:
        if len(self._open) + self._connecting >= connections_max and not self._drop_idle():
            raise ConnectionsExhausted(f"{connections_max} connections to engines are open")
        url = urlsplit(origin)
        tls = url.scheme == "https"
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: EngineConnection(self, origin, url.netloc),
                    url.hostname or "",
                    url.port or (443 if tls else 80),
                    ssl=True if tls else None,
                )
        except OSError as error:
            if error.errno in _LOCAL_ERRNOS:
                raise ConnectionsExhausted(f"this machine has no connection left: {error}") from error
            raise
        finally:
            self._connecting -= 1
        return connection

    def _drop_idle(self) -> bool:
        """Make room by closing one engine's longest idle connection. False without an idle one."""
        connection = next((connection for idle in self._idle.values() for connection in idle), None)
        if connection is not None:
            connection.drop()
        return connection is not None

    def opened(self, connection: EngineConnection) -> None:
        """A connection has been established."""
        self._open.add(connection)

    def ended(self, connection: EngineConnection) -> None:
        """A connection has ended."""
        self._open.discard(connection)
        if (idle := self._idle.get(connection.origin)) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.origin]

    def released(self, connection: EngineConnection) -> None:
        """A connection is idle and ready for its next request."""
        self._idle.setdefault(connection.origin, {})[connection] = None
        if self._sweeping is None:  # a hung engine closes no connection by itself
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and repeat while any is idle."""
        self._sweeping, oldest = None, time.monotonic() - self._keepalive_s
        for connection in [
            connection for idle in self._idle.values() for connection in idle if connection.idle_since <= oldest
        ]:
            connection.drop()
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._sweep)
