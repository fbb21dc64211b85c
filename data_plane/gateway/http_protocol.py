"""uvicorn's HTTP/1.1 protocol with limits that it lacks: on the size of headers and trailers, on the time for headers,
on pipelining. It also gives streams direct access to the connection, beyond ASGI.

A request that it refuses never reaches a route, and gets an error in the usual format.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from litestar.types import HTTPScope, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from core.errors import AppError, InvalidRequest, Unavailable
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.errors import Headers, HeadersTooLarge, RequestTimeout, error_body, error_headers
from data_plane.gateway.routes import client_of
from data_plane.gateway.settings import GatewaySettings


class _Refused(Exception):
    """Stops the parser after a connection has been refused."""


class GatewayProtocol(HttpToolsProtocol):
    """One client connection. The limits come from ``app.state.settings``."""

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:  # uvicorn's own signature
        super().__init__(config, *arguments, **options)
        settings: GatewaySettings = config.loaded_app.state.settings
        self._headers_max_bytes = settings.headers_max_bytes
        self._head_s = settings.headers_s
        self._unsent_max_bytes = settings.client_write_buffer_max_bytes
        self._connections_max = settings.gateway_connections_max
        self._handle = config.loaded_app.state.handle  # past the framework's router, which takes 40 us
        self._on_gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._unsent_max_bytes)
        self._buffered_bytes = 0  # bytes outside bodies: headers, trailers, or between requests
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self._head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._notify_gone()

    def data_received(self, data: bytes) -> None:
        self._buffered_bytes += len(data)
        # Count headers before parsing: the parser buffers unfinished headers of any size.
        if self._head_timer is not None and self._buffered_bytes > self._headers_max_bytes and b"\r\n\r\n" not in data:
            self._refuse_size()
            return
        super().data_received(data)
        if self._head_timer is None and self._buffered_bytes > self._headers_max_bytes:
            self._refuse_size()  # trailers, which uvicorn would buffer as well

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # uvicorn replaces the running request by the next one, and the former then never learns of a disconnect.
            self._refuse(
                InvalidRequest(
                    "HTTP pipelining is not supported; wait for the response before sending the next request.",
                    code="pipelining_not_allowed",
                )
            )
            raise _Refused
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_s, self._too_slow)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._buffered_bytes = 0
        full = len(self.connections) > self._connections_max
        self.app = _overloaded if full else self._handle
        super().on_headers_complete()
        if full and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._buffered_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._buffered_bytes = 0
        super().on_message_complete()

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
        """Begin a chunked response of status 200 with its first piece; else as ``push``. Header names are in lower
        case, and no header value comes from a caller.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.disconnected:
            cycle.response_started = cycle.chunked_encoding = True
            cycle.waiting_for_100_continue = False
            closing = () if cycle.keep_alive else ((b"connection", b"close"),)
            head = _lines([*self.server_state.default_headers, *headers, *closing, (b"transfer-encoding", b"chunked")])
            self.transport.write(STATUS_LINE[200] + head + _chunk(data))
        return not self.flow.write_paused

    @property
    def reads(self) -> bool:
        """Whether data sent now goes out without waiting for the client to read earlier data."""
        return not self.flow.write_paused

    def push(self, data: bytes) -> bool:
        """Send a piece of the running chunked response. False: await ``drained`` before the next piece."""
        if self.cycle is not None and not self.cycle.disconnected:
            self.transport.write(_chunk(data))
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

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; its message is not used
        """Uvicorn calls this for anything that is not HTTP."""
        self._refuse(InvalidRequest("The request is not valid HTTP.", code="malformed_http"))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._buffered_bytes == 0 and not self.transport.is_closing():
            self.transport.close()  # the client opened it in advance and did not use it
        else:
            self._refuse(RequestTimeout(f"The headers did not arrive within {self._head_s:g} s.", retryable=True))

    def _refuse_size(self) -> None:
        self._refuse(HeadersTooLarge(f"At most {self._headers_max_bytes} bytes of headers are accepted."))

    def _refuse(self, error: AppError) -> None:
        """Send an error, unless another response has begun, and close. A running request sees its client disconnect."""
        if self.transport.is_closing():
            return
        metrics.REFUSALS.labels(error.code).inc()
        if (cycle := self.cycle) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._notify_gone()
            if cycle.response_started:
                self.transport.abort()
                return
        body = error_body(error)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", new_id("req").encode()),
            *error_headers(error),
        ]
        self.transport.write(STATUS_LINE[error.status] + _lines(headers) + body)
        self.transport.close()


def _chunk(data: bytes) -> bytes:
    """One chunk; nothing for empty data, since an empty chunk would end the response."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _lines(headers: Headers) -> bytes:
    """Headers as sent, with the empty line that ends them."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers]) + b"\r\n"


async def _overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers instead of the application while the process has too many connections."""
    client = client_of(cast("HTTPScope", scope), receive, send, new_id("req"))
    metrics.REFUSALS.labels("overloaded").inc()
    await client.fail(
        Unavailable("This gateway has too many connections; try again in a second.", code="overloaded", retry_after_s=1)
    )
