"""The load generator of the streams benchmark: keeps a number of slow streams open and replaces each one that ends.

It runs as a separate process, checks every stream completely, and prints its progress as one line of JSON per second.
"""

import asyncio
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import uvloop

from benchmarks.gateway.channel import Channel, Exchange
from benchmarks.gateway.exchange import check_stream, post, request_body

_PATIENCE_S: Final = 60.0
_GAP_MS_MAX: Final = 10_000
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Load:
    """``streams`` concurrent streams of ``ticks`` pieces over these ports; the first start evenly over ``ramp_s``."""

    ports: tuple[int, ...]
    key: str
    prompt_tokens: int
    streams: int
    ticks: int
    ramp_s: float
    seconds: float


@dataclass(kw_only=True)
class Progress:
    """The printed totals since the start. ``gap_ms`` is [p50, p99, max] of the gaps between events."""

    at_s: float = 0.0
    running: int = 0
    ended: int = 0
    errors: int = 0
    error_example: str = ""
    gap_ms: tuple[int, int, int] = (0, 0, 0)


class Streams:
    """Keeps the streams of one load open for its duration."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._asked = 0
        self._pieces = (" tick",) * load.ticks
        self._progress = Progress()
        self._gaps = [0] * (_GAP_MS_MAX + 1)  # histogram: the number of gaps by milliseconds
        self._began = time.monotonic()
        self._end = self._began + load.ramp_s + load.seconds
        self._channels: dict[Channel, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_ended = asyncio.Event()

    async def run(self) -> None:
        """Start all streams, keep their number constant, and wait for the last ones to end."""
        reporting = asyncio.create_task(self._report_forever())
        load = self._load
        for index, port in zip(range(load.streams), itertools.cycle(load.ports), strict=False):
            due = self._began + load.ramp_s * index / load.streams
            if (wait_s := due - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await self._open(port)
        await asyncio.sleep(max(0.0, self._end - time.monotonic()))
        async with asyncio.timeout(load.ticks + _PATIENCE_S):
            await self._last_ended.wait()
        reporting.cancel()
        self._report()

    async def _open(self, port: int) -> None:
        try:
            _, channel = await asyncio.get_running_loop().create_connection(
                lambda: Channel(self._on_end), "127.0.0.1", port
            )
        except OSError as error:
            self._progress.errors += 1
            self._progress.error_example = self._progress.error_example or repr(error)
            return
        self._channels[channel] = port
        self._progress.running += 1
        self._ask(channel, port)

    def _ask(self, channel: Channel, port: int) -> None:
        self._asked += 1
        channel.ask(post(port, self._load.key, request_body(self._asked, stream=True)), time.monotonic())

    def _on_end(self, channel: Channel, exchange: Exchange) -> None:
        progress, port = self._progress, self._channels[channel]
        progress.running -= 1
        error = exchange.error
        try:
            if not error:
                check_stream(exchange.body, self._load.prompt_tokens, self._pieces)
        except ValueError as wrong:
            error = str(wrong)
        if error:
            progress.errors += 1
            progress.error_example = progress.error_example or error[:300]
        else:
            progress.ended += 1
            for early, late in itertools.pairwise(exchange.events_at):
                self._gaps[min(_GAP_MS_MAX, round((late - early) * 1000))] += 1
        if channel.lost:
            del self._channels[channel]
        if time.monotonic() >= self._end:
            if not progress.running:
                self._last_ended.set()
            return
        if channel.lost:
            task = asyncio.create_task(self._open(port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            progress.running += 1
            self._ask(channel, port)

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._report()

    def _report(self) -> None:
        self._progress.at_s = round(time.monotonic() - self._began, 1)
        self._progress.gap_ms = (self._gap(0.5), self._gap(0.99), self._gap(1.0))
        sys.stdout.write(json.dumps(asdict(self._progress)) + "\n")
        sys.stdout.flush()

    def _gap(self, share: float) -> int:
        """The quantile of the gaps at ``share``, in milliseconds."""
        left = share * sum(self._gaps)
        for gap_ms, count in enumerate(self._gaps):
            left -= count
            if left <= 0:
                return gap_ms
        return _GAP_MS_MAX


@click.command(help=__doc__)
@click.option("--port", "ports", type=int, multiple=True, required=True)
@click.option("--key", required=True)
@click.option("--prompt-tokens", type=int, required=True)
@click.option("--streams", type=int, required=True)
@click.option("--ticks", type=int, required=True)
@click.option("--ramp-s", type=float, required=True)
@click.option("--seconds", type=float, required=True)
def main(**options: Any) -> None:
    """Run the load; print one line of progress per second and a final line."""
    load = Load(**options)

    async def run() -> None:
        await Streams(load).run()

    uvloop.run(run())


if __name__ == "__main__":
    main()
