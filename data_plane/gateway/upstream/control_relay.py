"""Relays requests about files and batches to the control plane, as bytes: no body is parsed or kept here.

While the control plane is away, these requests are refused and inference goes on.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

import structlog

from core.errors import NotFound, Unavailable
from core.http_protocol import header_lines
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.errors import Headers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.connection import EngineConnection, EngineResponse
from data_plane.gateway.upstream.connection_pool import ConnectionPool

_log = structlog.get_logger()
_ASKED: Final = (b"authorization", b"content-type", b"accept", b"idempotency-key")
_ANSWERED: Final = ("content-type", "content-disposition", "retry-after", "idempotent-replayed")
"""Headers that are relayed. Values of others may be about a connection, or are the gateway's own. Without a length, no
client takes an answer for complete, and sends its next request, before this process does.
"""


class ControlRelay:
    """Relays to one control plane, at most ``relays_max`` requests at once, of one tenant at most half of them."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._origin = settings.control_url
        self._settings = settings
        self._running: Counter[str] = Counter()  # by tenant
        self._pool = ConnectionPool(
            connect_s=settings.connect_s,
            keepalive_s=settings.replica_keepalive_s,
            connections_max=settings.relays_max,
            spare=0,
            head_max_bytes=settings.replica_headers_max_bytes,
            unread_max_bytes=settings.replica_read_buffer_max_bytes,
        )

    async def relay(self, client: Client, tenant_id: str) -> None:
        """Relay one request and its answer. Raises AppError or ClientGone before the answer has begun."""
        if self._origin is None:
            raise NotFound("This gateway serves no files and no batches.", code="unknown_url")
        most = self._settings.relays_max
        if self._running.total() >= most or self._running[tenant_id] >= (most + 1) // 2:
            raise Unavailable(
                "Too many requests about files and batches run at once; try again shortly.",
                code="overloaded",
                retry_after_s=1,
            )
        self._running[tenant_id] += 1
        try:
            await self._relay(client, self._origin)
        finally:
            self._running[tenant_id] -= 1
            self._running += Counter()  # without tenants that have none

    def close(self) -> None:
        """Drop every connection."""
        self._pool.close()

    async def _relay(self, client: Client, origin: str) -> None:
        connection: EngineConnection | None = None
        try:
            length = client.announced_bytes(self._settings.relay_body_max_bytes)
            connection = await self._pool.open(origin)
            await self._send(client, connection, length)
            async with asyncio.timeout(self._settings.relay_answer_s):
                response = await connection.response()
        except BaseException as error:
            if connection is not None:
                connection.drop()
            if not isinstance(error, OSError):  # TimeoutError is one
                raise
            _log.warning("control plane unreachable", error=repr(error))
            raise Unavailable(
                "Files and batches are not served at the moment, because the control plane does not answer. Inference "
                "is not affected. Try again in a few seconds.",
                code="control_plane_unavailable",
                retry_after_s=5,
            ) from error
        await self._answer(client, connection, response)

    async def _send(self, client: Client, connection: EngineConnection, length: int | None) -> None:
        """Send the request. An answer that comes before the end of the body ends it."""
        target = client.raw_path + (b"?" + client.query if client.query else b"")
        headers: Headers = [(b"host", connection.host.encode())]
        headers += [(name, value) for name, value in client.request_headers if name in _ASKED]
        headers.append((b"x-forwarded-for", client.address.encode()))
        headers.append((b"transfer-encoding", b"chunked") if length is None else (b"content-length", b"%d" % length))
        connection.send(client.method.encode() + b" " + target + b" HTTP/1.1\r\n" + header_lines(headers))
        if length == 0:
            client.body_read = True
            return
        pieces = client.body_pieces(bytes_max=self._settings.relay_body_max_bytes, idle_s=self._settings.relay_idle_s)
        async for piece in pieces:
            chunk = piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece)
            async with asyncio.timeout(self._settings.relay_idle_s):
                if not await connection.write(chunk):
                    return
        if length is None:
            await connection.write(b"0\r\n\r\n")

    async def _answer(self, client: Client, connection: EngineConnection, response: EngineResponse) -> None:
        """Pass the answer on, at the speed of the slower side, unless one of them takes too long for a piece."""
        client.watch(connection.drop)
        idle_s = self._settings.relay_idle_s
        try:
            await client.start(response.status, _shown(response.headers))
            while True:
                async with asyncio.timeout(idle_s):
                    data = await response.read_chunk()
                if not data:
                    break
                async with asyncio.timeout(idle_s):
                    await client.send_piece(data)
            await client.finish(b"")
        except OSError as error:  # the control plane broke off, the client is gone, or one of them is too slow
            _log.info("relayed answer not complete", error=repr(error))
            client.cut()
        finally:
            client.watch(None)
            response.close()


def _shown(headers: Mapping[str, str]) -> Headers:
    return [(name.encode(), value.encode("latin-1")) for name in _ANSWERED if (value := headers.get(name)) is not None]
