"""uvicorn's HTTP/1.1 protocol with two bounds it lacks: how large a request's head may be, and how long it may take."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from data_plane.gateway.settings import GatewaySettings

_REFUSED = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
)
_BODY = (
    b'{"error":{"message":"Request line and headers are too large.","type":"invalid_request_error","param":null,'
    b'"code":"headers_too_large"}}'
)


class GatewayProtocol(HttpToolsProtocol):
    """Its bounds are in the settings that the application carries as ``app.state.settings``."""

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:  # uvicorn's own signature
        super().__init__(config, *arguments, **options)
        settings: GatewaySettings = config.loaded_app.state.settings
        self._head_max_bytes = settings.headers_max_bytes
        self._head_s = settings.headers_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self._head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Counted before it is parsed: the parser keeps an unfinished head of any size.
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self._head_max_bytes and b"\r\n\r\n" not in data:
                self.transport.write(_REFUSED % (len(_BODY), _BODY))
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(self._head_s, self._too_slow)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
