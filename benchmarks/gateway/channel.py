"""One caller's connection: posts a request, reads the answer as it arrives, and records the time of each event.

``benchmarks.gateway.client`` decides when to send and what the times mean.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(slots=True)
class Exchange:
    """One request and its answer; times are monotonic seconds.

    ``events_at`` has a time for every event; events that arrive together have the same time. ``error`` is empty when
    the answer is complete. After the check only the first of ``events_at`` is left, and no body.
    """

    due: float
    sent: float
    ended: float = 0.0
    events_at: list[float] = field(default_factory=list)
    body: bytes = b""
    error: str = ""


class Channel(asyncio.Protocol):
    """A keep-alive connection to a port. Calls ``on_end`` with every exchange that has ended, complete or not."""

    def __init__(self, port: int, on_end: "Callable[[Channel, Exchange], None]") -> None:
        self.port = port
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._raw = b""
        self._body = bytearray()
        self._length: int | None = None  # of the body; -1 when it is chunked, None before the head has arrived
        self._close = False
        self.lost = False

    def ask(self, request: bytes, due: float) -> None:
        """Post a request."""
        assert self._transport is not None
        assert self._exchange is None, "one at a time"
        self._raw, self._length, self._body = b"", None, bytearray()
        self._exchange = Exchange(due, time.monotonic())
        self._transport.write(request)

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._end(f"the connection was lost: {exc!r}")

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        exchange = self._exchange
        if exchange is None:
            return  # after an error
        self._raw = self._raw + data if self._raw else data
        if self._length is None and not self._read_head():
            return
        had = len(self._body)
        whole = self._read_chunks() if self._length == -1 else self._read_length()
        if self._length == -1 and len(self._body) > had:
            # Start one byte earlier: an event's final two newlines may lie in two chunks.
            exchange.events_at.extend([now] * self._body.count(b"\n\n", max(0, had - 1)))
        if whole:
            exchange.ended = now
            exchange.body = bytes(self._body)
            self._end("")

    def _read_head(self) -> bool:
        """True once the head of a 200 answer is complete, so that its body follows."""
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        head, self._raw = self._raw[: end + 2], self._raw[end + 4 :]
        length = _LENGTH.search(head)
        self._length = -1 if _CHUNKED.search(head) else int(length[1]) if length else 0
        self._close = _CLOSE.search(head) is not None
        if not head.startswith(b"HTTP/1.1 200"):
            self._close = True
            self._end(f"{head[:40]!r} {self._raw[:300]!r}")
            return False
        return True

    def _read_chunks(self) -> bool:
        """Consume the complete chunks; True after the last chunk."""
        raw, at = self._raw, 0
        while (line := raw.find(b"\r\n", at)) >= 0:
            size = int(raw[at:line], 16)
            if len(raw) < line + size + 4:
                break
            at, begin = line + size + 4, line + 2
            if not size:
                self._raw = raw[at:]
                return True
            self._body += raw[begin : begin + size]
        self._raw = raw[at:]
        return False

    def _read_length(self) -> bool:
        assert self._length is not None
        self._body += self._raw
        self._raw = b""
        return len(self._body) >= self._length

    def _end(self, error: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.error = error
        if (error or self._close) and not self.lost:
            self.lost = True
            self.close()
        self._on_end(self, exchange)
