"""uvicorn's HTTP/1.1 protocol with limits that it lacks: on the size of headers and trailers, on the time for headers
and bodies, on pipelining, and on connections, in all and by client address. It ignores offers to upgrade, and sends
HTTP/1.0 clients bodies that end with the connection.

Both HTTP servers of the platform use it. Each renders its own errors. A refused request never reaches the application.
"""

import asyncio
from abc import abstractmethod
from collections import Counter
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from core.errors import AppError, HeadersTooLarge, InvalidRequest, RequestTimeout, Unavailable

Headers = list[tuple[bytes, bytes]]

_UPGRADE_TOKENS: Final = frozenset({b"upgrade", b"http2-settings"})
"""Headers, and options of ``connection``, that offer another protocol."""

_connections_by_address: Final[WeakKeyDictionary[ServerState, Counter[str]]] = WeakKeyDictionary()


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server process. Where ``body_s`` is None, the application limits the time for bodies; where
    ``connections_per_address_max`` is None, one address may open all connections.
    """

    headers_max_bytes: int
    headers_s: float
    connections_max: int
    body_s: float | None = None
    connections_per_address_max: int | None = None


class _Refused(Exception):
    """Stops the parser after a connection has been refused."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One client connection. A server's subclass has its limits and renders its errors."""

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:  # uvicorn's own signature
        super().__init__(config, *arguments, **options)
        self._limits = self.limits_of(config)
        self._headers_max_bytes = self._limits.headers_max_bytes
        self._over_limit = False

    @abstractmethod
    def limits_of(self, config: Config) -> HttpLimits:
        """The limits of the server with this configuration."""

    @abstractmethod
    def refusal(self, error: AppError) -> tuple[Headers, bytes]:
        """Headers and body of a refusal, without the length and ``connection``. It may count the refusal."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._buffered_bytes = 0  # bytes outside bodies: headers, trailers, or between requests
        self._body_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self._limits.headers_s, self._head_is_late)
        self._over_limit = len(self.connections) > self._limits.connections_max
        if (most := self._limits.connections_per_address_max) is not None and self.client is not None:
            counts = _connections_by_address.setdefault(self.server_state, Counter())
            counts[self.client[0]] += 1
            self._over_limit |= counts[self.client[0]] > most

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        if self._limits.connections_per_address_max is not None and self.client is not None:
            counts = _connections_by_address[self.server_state]
            counts[self.client[0]] -= 1
            if not counts[self.client[0]]:
                del counts[self.client[0]]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._buffered_bytes += len(data)
        # Count headers before parsing: the parser buffers unfinished headers of any size.
        if self._head_timer is not None and self._buffered_bytes > self._headers_max_bytes and b"\r\n\r\n" not in data:
            self._refuse_size()
            return
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._head_timer is None and self._buffered_bytes > self._headers_max_bytes:
            self._refuse_size()  # trailers, which uvicorn would buffer as well

    def _parse(self, data: bytes) -> None:
        """Parse as uvicorn does, but read a request with an offer to upgrade again without the offer: a server may
        ignore it (RFC 9110, section 7.8), and the parser takes what follows the headers for the offered protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)  # the other one may expect nothing after ``close``
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _head_without_upgrade(self) -> bytes:
        headers: Headers = []
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_TOKENS]
                headers.append((name, b",".join(kept)))
            elif name not in _UPGRADE_TOKENS:
                headers.append((name, value))
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version) + header_lines(headers)

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # uvicorn replaces the running request by the next one, and the former then never learns of a disconnect.
            self.refuse(
                InvalidRequest(
                    "HTTP pipelining is not supported; wait for the response before sending the next request.",
                    code="pipelining_not_allowed",
                )
            )
            raise _Refused
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.headers_s, self._head_is_late)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refused
            return  # the request comes again without its offer
        self._stop_timers()
        self._buffered_bytes = 0
        if self._over_limit:
            self.refuse(
                Unavailable("Too many connections are open; try again in a second.", code="overloaded", retry_after_s=1)
            )
            raise _Refused
        if (body_s := self._limits.body_s) is not None:
            self._body_timer = self.loop.call_later(body_s, self._body_is_late)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._buffered_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._buffered_bytes = 0
        if self._body_timer is not None:
            self._stop_timers()
        super().on_message_complete()

    @property
    def until_close(self) -> bool:
        """Whether a response without a length ends with its connection: only HTTP/1.1 clients know chunks."""
        return self.scope["http_version"] != "1.1"

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, partial(_respond_until_close, cycle, app) if self.until_close else app)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; its message is not used
        """Uvicorn calls this for anything that is not HTTP."""
        self.refuse(InvalidRequest("The request is not valid HTTP.", code="malformed_http"))

    def refuse(self, error: AppError) -> None:
        """Send an error, unless another response has begun, and close. A running request sees its client disconnect."""
        if self.transport.is_closing():
            return
        begun = False
        if (cycle := self.cycle) is not None and not cycle.response_complete:
            cycle.disconnected, begun = True, cycle.response_started
            cycle.message_event.set()
        headers, body = self.refusal(error)
        if begun:
            self.transport.abort()
            return
        lines = header_lines([*headers, (b"content-length", b"%d" % len(body)), (b"connection", b"close")])
        self.transport.write(STATUS_LINE[error.status] + lines + body)
        self.transport.close()

    def _stop_timers(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._buffered_bytes == 0 and not self.transport.is_closing():
            self.transport.close()  # the client opened it in advance and did not use it
        else:
            self.refuse(
                RequestTimeout(f"The headers did not arrive within {self._limits.headers_s:g} s.", retryable=True)
            )

    def _body_is_late(self) -> None:
        self._body_timer = None
        self.refuse(RequestTimeout(f"The body did not arrive within {self._limits.body_s:g} s.", retryable=True))

    def _refuse_size(self) -> None:
        self.refuse(HeadersTooLarge(f"At most {self._headers_max_bytes} bytes of headers are accepted."))


async def _respond_until_close(cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> None:
    """Run an ASGI application. Its responses without a length are sent without chunks, and end with the connection."""
    cycle.keep_alive = False

    async def send_plainly(message: Any) -> None:
        if message["type"] != "http.response.start":
            # uvicorn counts the length down to 0, which ends the body.
            cycle.expected_content_length = max(cycle.expected_content_length, len(message.get("body", b"")))
        elif not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
            cycle.chunked_encoding = False
        await send(message)

    await app(scope, receive, send_plainly)


def header_lines(headers: Headers) -> bytes:
    """Headers as sent, with the empty line that ends them."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers]) + b"\r\n"
