"""The upstream of the gateway's benchmarks: one process that speaks an engine's HTTP at the least CPU cost in Python.

Its bytes are encoded in advance, and one kernel timer paces all streams. The content of its answers is in
``benchmarks.gateway.exchange``. ``PUT /pace?first_ms=10&gap_ms=1`` sets the pace; with both 0 a stream is sent at once.
"""

import asyncio
import re
from collections import defaultdict
from typing import Final, cast

import click
import uvloop

from benchmarks.gateway.exchange import DONE, MODEL, PIECES, Script, head, tick_pieces, understood
from benchmarks.kernel_timer import KernelTimer

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(rb"\r\nx-request-id: *([^\r]+)", re.IGNORECASE)
_PACE: Final = re.compile(rb"first_ms=(\d+)&gap_ms=(\d+)")
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
_MODELS: Final = b'{"object":"list","data":[{"id":"%b","object":"model"}]}' % MODEL.encode()


class Upstream:
    """The state that all connections share: the encoded answers, the pace, and the timer wheel of running streams."""

    def __init__(self, script: Script) -> None:
        self.tails = {continuous: script.tails(continuous=continuous) for continuous in (False, True)}
        self.whole = script.whole()
        self.first_ms, self.gap_ms = 0, 0
        self._wheel: dict[int, list[Stream]] = defaultdict(list)  # by the tick at which they are due
        self.ticks = 0
        self._timer = KernelTimer(self._tick)
        self._ticking = False

    def schedule(self, stream: "Stream", due: int) -> None:
        """Schedule a stream's next event at tick ``due``. A tick is a millisecond; ticks run while anything is due."""
        if not self._ticking:
            self._ticking = True
            self._timer.every(0.001)
        self._wheel[due].append(stream)

    def _tick(self, times: int) -> None:
        """Write all events that are due. A stream keeps its own schedule even when a tick is late."""
        for _ in range(times):
            self.ticks += 1
            for stream in self._wheel.pop(self.ticks, ()):
                stream.write_next()
        if not self._wheel:
            self._ticking = False
            self._timer.every(0)


class Stream:
    """One paced answer."""

    __slots__ = ("_connection", "_due", "_head", "_index", "_tails", "_upstream")

    def __init__(self, upstream: Upstream, connection: "Connection", head: bytes, tails: list[bytes]) -> None:
        self._upstream, self._connection, self._head, self._tails = upstream, connection, head, tails
        self._index = 0
        self._due = upstream.ticks + 1 + upstream.first_ms
        upstream.schedule(self, self._due)

    def write_next(self) -> None:
        """Write one event and schedule the next. [DONE] is a separate write, one gap after the usage."""
        if self._connection.closed:
            return
        if self._index == len(self._tails):
            self._connection.write(_LAST_CHUNKS)
            return
        self._connection.write(_chunk(self._head + self._tails[self._index]))
        self._index += 1
        self._due += max(1, self._upstream.gap_ms)
        self._upstream.schedule(self, self._due)


class Connection(asyncio.Protocol):
    """One keep-alive connection. It answers its requests one after another."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._received, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < whole:
                return
            request, self._received = self._received[:whole], self._received[whole:]
            self._answer(request[: end + 2], request[end + 4 :])

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _answer(self, request_head: bytes, body: bytes) -> None:
        if request_head.startswith(b"POST /v1/chat/completions"):
            self._complete(request_head, body)
        elif request_head.startswith(b"PUT /pace"):
            pace = _PACE.search(request_head)
            if pace is not None:
                self._upstream.first_ms, self._upstream.gap_ms = int(pace[1]), int(pace[2])
            self.write(
                _json(b"{}") if pace else _json(b'{"error":"first_ms and gap_ms are required"}', b"400 Bad Request")
            )
        elif request_head.startswith(b"GET /v1/models"):
            self.write(_json(_MODELS))
        elif request_head.startswith((b"GET /health", b"GET / ", b"POST /inference/v1/abort_requests")):
            self.write(_json(b"{}"))
        else:
            self.write(_json(b'{"error":"not found"}', b"404 Not Found"))

    def _complete(self, request_head: bytes, body: bytes) -> None:
        try:
            request = understood(body)
        except ValueError as error:
            self.write(_json(b'{"error":"%b"}' % str(error).encode(), b"400 Bad Request"))
            return
        named = _REQUEST_ID.search(request_head)
        request_id = named[1] if named else b"0"
        upstream = self._upstream
        if not request.stream:
            self.write(_json(head(request_id, chunk=False) + upstream.whole))
            return
        options = request.stream_options
        tails = upstream.tails[options is not None and options.continuous_usage_stats]
        start = head(request_id, chunk=True)
        if upstream.first_ms or upstream.gap_ms:
            self.write(_STREAM_HEAD)
            Stream(upstream, self, start, tails)
        else:
            self.write(_STREAM_HEAD + b"".join([_chunk(start + tail) for tail in tails]) + _LAST_CHUNKS)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def serve(port: int, script: Script) -> None:
    """Listen until cancelled."""
    upstream = Upstream(script)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(upstream), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


@click.command(help=__doc__)
@click.option("--port", type=int, required=True)
@click.option("--prompt-tokens", type=int, required=True, help="Prompt tokens that the usage reports.")
@click.option("--ticks", type=int, help="Answer with this many equal pieces instead of the default answer.")
def main(port: int, prompt_tokens: int, ticks: int | None) -> None:
    """Serve on a loopback port."""
    pieces = PIECES if ticks is None else tick_pieces(ticks)
    uvloop.run(serve(port, Script(prompt_tokens, pieces)))


if __name__ == "__main__":
    main()
