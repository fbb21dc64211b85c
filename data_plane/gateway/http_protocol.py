"""A client connection of the gateway: the limits of ``core.http_protocol``, errors in OpenAI's format, and direct
access to the connection for streams, beyond ASGI.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from core.errors import AppError
from core.http_protocol import HttpLimits, LimitedHttpProtocol, header_lines
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.errors import Headers, error_body, error_headers
from data_plane.gateway.settings import GatewaySettings


class GatewayProtocol(LimitedHttpProtocol):
    """One client connection. The limits come from ``app.state.settings``."""

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:  # uvicorn's own signature
        super().__init__(config, *arguments, **options)
        settings: GatewaySettings = config.loaded_app.state.settings
        self._unsent_max_bytes = settings.client_write_buffer_max_bytes
        self.app = config.loaded_app.state.handle  # past the framework's router, which takes 40 us
        self._on_gone: Callable[[], None] | None = None

    def limits_of(self, config: Config) -> HttpLimits:
        settings: GatewaySettings = config.loaded_app.state.settings
        return HttpLimits(
            headers_max_bytes=settings.headers_max_bytes,
            headers_s=settings.headers_s,
            connections_max=settings.gateway_connections_max,
        )

    def refusal(self, error: AppError) -> tuple[Headers, bytes]:
        metrics.REFUSALS.labels(error.code).inc()
        self._notify_gone()
        headers = [(b"content-type", b"application/json"), (b"x-request-id", new_id("req").encode())]
        return [*headers, *error_headers(error)], error_body(error)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._unsent_max_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._notify_gone()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def whole_body(self) -> bytes | None:
        """The running request's body, if all of it has arrived and none of it has been read; else None."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        self.flow.resume_reading()
        return body

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Call ``on_gone`` once, soon, when the client disconnects or already has. None removes the callback."""
        self._on_gone = on_gone
        if on_gone is None:
            return
        self.flow.resume_reading()  # a long body had paused reading, and a paused socket reports no disconnect
        if self.cycle is not None and self.cycle.disconnected:
            self.loop.call_soon(self._notify_gone)

    def begin(self, headers: Headers, data: bytes) -> bool:
        """Begin a response of status 200 and no known length with its first piece; else as ``push``. Header names are
        in lower case, and no header value comes from a caller.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.disconnected:
            cycle.response_started, cycle.chunked_encoding = True, not self.until_close
            cycle.waiting_for_100_continue = False
            closing = () if cycle.keep_alive else ((b"connection", b"close"),)
            chunked = ((b"transfer-encoding", b"chunked"),) if cycle.chunked_encoding else ()
            head = header_lines([*self.server_state.default_headers, *headers, *closing, *chunked])
            self.transport.write(STATUS_LINE[200] + head + (_chunk(data) if chunked else data))
        return not self.flow.write_paused

    @property
    def reads(self) -> bool:
        """Whether data sent now goes out without waiting for the client to read earlier data."""
        return not self.flow.write_paused

    def push(self, data: bytes) -> bool:
        """Send a piece of the response that ``begin`` began. False: await ``drained`` before the next piece."""
        if self.cycle is not None and not self.cycle.disconnected:
            self.transport.write(_chunk(data) if self.cycle.chunked_encoding else data)
        return not self.flow.write_paused

    async def drained(self) -> None:
        """Wait until the client has read enough for more, or is gone."""
        await self.flow.drain()

    def cut(self) -> None:
        """Close the connection at once, without sending pending data."""
        self.transport.abort()

    def _notify_gone(self) -> None:
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()


def _chunk(data: bytes) -> bytes:
    """One chunk; nothing for empty data, since an empty chunk would end the response."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
