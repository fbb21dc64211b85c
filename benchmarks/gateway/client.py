"""The load generator of the gateway's and the streams' benchmark: a closed loop at a concurrency, or an open loop at a
rate, over one gateway or several.

It runs as a separate process. It checks every answer completely; an answer that differs from the upstream's counts as
an error.
"""

import asyncio
import itertools
import json
import random
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

import click
import uvloop

from benchmarks.gateway.channel import Channel, Exchange
from benchmarks.gateway.exchange import PIECES, check_stream, check_whole, post, request_body, tick_pieces
from benchmarks.kernel_timer import KernelTimer
from benchmarks.load import quantile

_PATIENCE_S: Final = 60.0
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send.

    With ``rate_per_s`` the loop is open: each request is sent at a random instant of its slot of ``1 / rate_per_s``
    seconds, whether or not earlier requests are done. Without it the loop is closed: ``concurrency`` requests are
    always in flight; the first ones start evenly over ``ramp_s``. With ``ticks`` a stream has that many equal pieces.
    Connections take the ports in turn.
    """

    ports: tuple[int, ...]
    key: str
    stream: bool
    prompt_tokens: int
    concurrency: int
    seconds: float
    warm_s: float
    ramp_s: float = 0.0
    rate_per_s: float | None = None
    ticks: int | None = None
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The results of one load. ``served`` counts all answered requests, warm-up included; the rest covers the window.

    ``gap_ms`` covers all gaps between events, ``event_gap_ms`` all but the gap before [DONE], which waits for the
    settlement. ``busy`` is this process's share of a core while it sent, ``cpu_s`` its CPU seconds. Values in
    milliseconds are [p50, p99], of gaps [p50, p99, max].
    """

    served: int
    completed: int
    errors: int
    error_examples: list[str]
    per_s: float
    events: dict[int, int]
    first_ms: list[float]
    gap_ms: list[float]
    event_gap_ms: list[float]
    total_ms: list[float]
    late_ms: list[float]
    busy: float
    cpu_s: float


class Session:
    """One load, from its first connection to its last answer."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._asked = 0
        pieces = PIECES if load.ticks is None else tick_pieces(load.ticks)
        self._check: Callable[[bytes, int], int] = (
            partial(check_stream, expected=pieces) if load.stream else check_whole
        )
        self._ports = itertools.cycle(load.ports)
        self._idle: list[Channel] = []
        self._running = 0
        self._exchanges: list[Exchange] = []
        self._events: Counter[int] = Counter()
        self._errors: list[str] = []
        self._gaps, self._last_gaps = array("d"), array("d")  # seconds; the last gap of a stream is that before [DONE]
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin = self._end = 0.0

    async def run(self) -> LoadReport:
        """Send the load and wait for the last answer."""
        load, used = self._load, time.process_time()
        started = time.monotonic()
        self._begin = started + load.warm_s
        self._end = self._begin + load.ramp_s + load.seconds
        reporting = asyncio.create_task(self._report_forever(started)) if load.progress else None
        if load.rate_per_s is None:
            for index in range(load.concurrency):
                if (wait_s := started + load.ramp_s * index / load.concurrency - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                await self._ask(time.monotonic())
        else:
            await self._send_at(load.rate_per_s, started)
        await asyncio.sleep(max(0.0, self._end - time.monotonic()))
        async with asyncio.timeout(_PATIENCE_S + (load.ticks or 0)):
            while self._running:
                self._ended.clear()
                await self._ended.wait()
        if reporting is not None:
            reporting.cancel()
            self._report(started)
        cpu_s = time.process_time() - used
        busy = cpu_s / (time.monotonic() - started)
        for channel in self._idle:
            channel.close()
        if load.rate_per_s is not None:
            for exchange in self._exchanges:
                self._judge(exchange)
        return self._seen(busy, cpu_s)

    async def _send_at(self, rate_per_s: float, started: float) -> None:
        rung = asyncio.Event()
        timer, dice, sent = KernelTimer(lambda _times: rung.set()), random.Random(rate_per_s), 0
        # Evenly spaced requests would all arrive at the same phase of the upstream's ticks.
        while (due := started + (sent + dice.random()) / rate_per_s) < self._end:
            if due > time.monotonic():
                rung.clear()
                timer.at(due)
                await rung.wait()
            await self._ask(due)
            sent += 1

    async def _ask(self, due: float, port: int | None = None) -> None:
        self._running += 1
        while self._idle:
            channel = self._idle.pop()
            if not channel.lost:
                break
        else:
            port = port or next(self._ports)
            try:
                _, channel = await self._loop.create_connection(partial(Channel, port, self._on_end), "127.0.0.1", port)
            except OSError as error:
                self._running -= 1
                self._errors.append(repr(error))
                self._ended.set()
                return
        channel.ask(self._request(channel.port), due)

    def _request(self, port: int) -> bytes:
        self._asked += 1
        return post(port, self._load.key, request_body(self._asked, stream=self._load.stream))

    def _on_end(self, channel: Channel, exchange: Exchange) -> None:
        self._running -= 1
        now = time.monotonic()
        self._exchanges.append(exchange)
        closed_loop = self._load.rate_per_s is None
        if closed_loop:  # an open loop checks at the end: a check now would delay the sends and the events it times
            self._judge(exchange)
        goes_on = closed_loop and now < self._end
        if goes_on and not channel.lost:
            self._running += 1
            channel.ask(self._request(channel.port), now)
        elif goes_on:
            task = asyncio.create_task(self._ask(now, channel.port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not channel.lost:
            self._idle.append(channel)
        self._ended.set()

    def _judge(self, exchange: Exchange) -> None:
        """Check an answer, count its gaps, and clear what is not needed any more."""
        at = exchange.events_at
        if not exchange.error:
            try:
                self._events[self._check(exchange.body, self._load.prompt_tokens)] += 1
            except ValueError as error:
                exchange.error = str(error)
        if exchange.error:
            self._errors.append(exchange.error)
        elif self._begin <= exchange.sent < self._end:
            gaps = [late - early for early, late in itertools.pairwise(at)]
            self._gaps.extend(gaps[:-1])
            self._last_gaps.extend(gaps[-1:])
        exchange.body = b""
        del at[1:]

    async def _report_forever(self, started: float) -> None:
        while True:
            await asyncio.sleep(1)
            self._report(started)

    def _report(self, started: float) -> None:
        """Print one line of progress."""
        at_s, ended = round(time.monotonic() - started, 1), sum(self._events.values())
        line = {"at_s": at_s, "running": self._running, "ended": ended, "errors": len(self._errors)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def _seen(self, busy: float, cpu_s: float) -> LoadReport:
        served = [each for each in self._exchanges if not each.error]
        timed = [each for each in served if self._begin <= each.sent < self._end]
        completed = sum(self._begin <= each.ended < self._end for each in served)
        return LoadReport(
            served=len(served),
            completed=completed,
            errors=len(self._errors),
            error_examples=[error[:300] for error in self._errors[:_ERRORS_SHOWN]],
            per_s=completed / (self._end - self._begin),
            events=dict(self._events),
            first_ms=_quantiles_ms([each.events_at[0] - each.sent for each in timed if each.events_at]),
            gap_ms=_quantiles_ms(self._gaps + self._last_gaps, 0.5, 0.99, 1.0),
            event_gap_ms=_quantiles_ms(self._gaps),
            total_ms=_quantiles_ms([each.ended - each.sent for each in timed]),
            late_ms=_quantiles_ms([each.sent - each.due for each in timed]),
            busy=busy,
            cpu_s=cpu_s,
        )


def _quantiles_ms(seconds: Sequence[float], *shares: float) -> list[float]:
    return [round(quantile(seconds, share) * 1000, 3) for share in shares or (0.5, 0.99)]


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(["stream", "whole"]))
@click.option("--port", "ports", type=int, multiple=True, required=True)
@click.option("--key", required=True)
@click.option("--prompt-tokens", type=int, required=True, help="Prompt tokens that the answer's usage must report.")
@click.option("--concurrency", default=32)
@click.option("--rate", "rate_per_s", type=float)
@click.option("--seconds", type=float, required=True)
@click.option("--warm-s", type=float, default=0.5)
@click.option("--ramp-s", type=float, default=0.0)
@click.option("--ticks", type=int)
@click.option("--progress", is_flag=True, help="Also print a line of JSON each second.")
def main(kind: Literal["stream", "whole"], **options: Any) -> None:
    """Run one load and print its report as one JSON object."""
    load = Load(stream=kind == "stream", **options)

    async def measure() -> LoadReport:
        return await Session(load).run()

    click.echo(json.dumps(asdict(uvloop.run(measure()))))


if __name__ == "__main__":
    main()
