"""The load generator of the gateway's benchmarks: a closed loop at a concurrency, or an open loop at a rate.

It runs as a separate process. It checks every answer completely; an answer that differs from the upstream's counts as
an error.
"""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import click
import uvloop

from benchmarks.gateway.channel import Channel, Exchange
from benchmarks.gateway.exchange import check_stream, check_whole, post, request_body
from benchmarks.kernel_timer import KernelTimer
from benchmarks.load import quantile

_PATIENCE_S: Final = 60.0
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send.

    With ``rate_per_s`` the loop is open: each request is sent at a random instant of its slot of ``1 / rate_per_s``
    seconds, whether or not earlier requests are done. Without it the loop is closed: ``concurrency`` requests are
    always in flight.
    """

    port: int
    key: str
    stream: bool
    prompt_tokens: int
    concurrency: int
    seconds: float
    warm_s: float
    rate_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The results of one load. ``served`` counts all answered requests, warm-up included; the rest covers the window.

    ``gap_ms`` covers all gaps between events, ``event_gap_ms`` all but the gap before [DONE], which waits for the
    settlement. ``busy`` is this process's share of a core while it sent, ``cpu_s`` its CPU seconds. Values in
    milliseconds are [p50, p99].
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
        self._check = check_stream if load.stream else check_whole
        self._idle: list[Channel] = []
        self._running = 0
        self._exchanges: list[Exchange] = []
        self._events: Counter[int] = Counter()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin = self._end = 0.0

    async def run(self) -> LoadReport:
        """Send the load and wait for the last answer."""
        load, used = self._load, time.process_time()
        started = time.monotonic()
        self._begin, self._end = started + load.warm_s, started + load.warm_s + load.seconds
        if load.rate_per_s is None:
            for _ in range(load.concurrency):
                await self._ask(time.monotonic())
        else:
            await self._send_at(load.rate_per_s, started)
        await asyncio.sleep(max(0.0, self._end - time.monotonic()))
        async with asyncio.timeout(_PATIENCE_S):
            while self._running:
                self._ended.clear()
                await self._ended.wait()
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

    async def _ask(self, due: float) -> None:
        self._running += 1
        while self._idle:
            channel = self._idle.pop()
            if not channel.lost:
                break
        else:
            _, channel = await self._loop.create_connection(lambda: Channel(self._on_end), "127.0.0.1", self._load.port)
        channel.ask(self._request(), due)

    def _request(self) -> bytes:
        self._asked += 1
        return post(self._load.port, self._load.key, request_body(self._asked, stream=self._load.stream))

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
            channel.ask(self._request(), now)
        elif goes_on:
            task = asyncio.create_task(self._ask(now))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not channel.lost:
            self._idle.append(channel)
        self._ended.set()

    def _judge(self, exchange: Exchange) -> None:
        """Check an answer and clear its bytes."""
        if not exchange.error:
            try:
                self._events[self._check(exchange.body, self._load.prompt_tokens)] += 1
            except ValueError as error:
                exchange.error = str(error)
        exchange.body = b""

    def _seen(self, busy: float, cpu_s: float) -> LoadReport:
        served = [each for each in self._exchanges if not each.error]
        errors = [each.error for each in self._exchanges if each.error]
        timed = [each for each in served if self._begin <= each.sent < self._end]
        completed = sum(self._begin <= each.ended < self._end for each in served)
        gaps = [[late - early for early, late in itertools.pairwise(each.events_at)] for each in timed]
        return LoadReport(
            served=len(served),
            completed=completed,
            errors=len(errors),
            error_examples=errors[:_ERRORS_SHOWN],
            per_s=completed / self._load.seconds,
            events=dict(self._events),
            first_ms=_quantiles_ms([each.events_at[0] - each.sent for each in timed if each.events_at]),
            gap_ms=_quantiles_ms([gap for each in gaps for gap in each]),
            event_gap_ms=_quantiles_ms([gap for each in gaps for gap in each[:-1]]),
            total_ms=_quantiles_ms([each.ended - each.sent for each in timed]),
            late_ms=_quantiles_ms([each.sent - each.due for each in timed]),
            busy=busy,
            cpu_s=cpu_s,
        )


def _quantiles_ms(seconds: list[float]) -> list[float]:
    return [round(quantile(seconds, share) * 1000, 3) for share in (0.5, 0.99)]


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(["stream", "whole"]))
@click.option("--port", type=int, required=True)
@click.option("--key", required=True)
@click.option("--prompt-tokens", type=int, required=True, help="Prompt tokens that the answer's usage must report.")
@click.option("--concurrency", default=32)
@click.option("--rate", "rate_per_s", type=float)
@click.option("--seconds", type=float, required=True)
@click.option("--warm-s", type=float, default=0.5)
def main(kind: Literal["stream", "whole"], **options: Any) -> None:
    """Run one load and print its report as one JSON object."""
    load = Load(stream=kind == "stream", **options)

    async def measure() -> LoadReport:
        return await Session(load).run()

    click.echo(json.dumps(asdict(uvloop.run(measure()))))


if __name__ == "__main__":
    main()
