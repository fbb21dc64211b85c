"""Traces reach a collector in order; one that is away, hangs or refuses costs neither memory nor time."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from core.errors import InvalidSettings
from data_plane.gateway import metrics
from data_plane.gateway.request.trace_exporter import TraceExporter
from tests.fixtures.gateway.requests import settings_with


class Collector:
    """Answers with ``status``, which may be bytes that are no HTTP, or never if it is None."""

    def __init__(self) -> None:
        self.status: int | bytes | None = 200
        self.heads: list[str] = []
        self.batches: list[list[str]] = []
        self.got_one = asyncio.Event()
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.splitlines() if line.startswith("content-length: ")).split()[1]
        body = json.loads(await reader.readexactly(int(length)))
        [scope] = body["resourceSpans"][0]["scopeSpans"]
        self.heads.append(head)
        self.batches.append([span["name"] for span in scope["spans"]])
        self.got_one.set()
        if self.status is None:
            await reader.read()  # until the gateway gives up
        else:
            line = self.status if isinstance(self.status, bytes) else b"HTTP/1.1 %d x\r\n\r\n" % self.status
            writer.write(line)
        writer.close()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    async with await asyncio.start_server(collector.answer, "127.0.0.1") as server:
        collector.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield collector


def exporter(url: str, **settings: object) -> TraceExporter:
    return TraceExporter(settings_with(otlp_endpoint=url, **{"otlp_timeout_s": 10, **settings}), "gw_1")


def add(traces: TraceExporter, *names: str) -> None:
    for name in names:
        traces.add(json.dumps({"name": name}).encode())


async def test_traces_are_posted_in_order_with_the_headers(collector):
    traces = exporter(collector.url + "/otlp/", otlp_headers="authorization=Bearer%20secret, x-team=a")
    add(traces, *map(str, range(300)))
    await traces.flush()
    assert [len(batch) for batch in collector.batches] == [256, 44]
    assert [*collector.batches[0], *collector.batches[1]] == list(map(str, range(300)))
    head = collector.heads[0]
    assert head.startswith("POST /otlp/v1/traces HTTP/1.1\r\n")
    assert "\r\nauthorization: Bearer secret\r\nx-team: a\r\ncontent-type: application/json\r\n" in head
    await traces.flush()
    assert len(collector.batches) == 2, "nothing is sent twice"


@pytest.mark.parametrize("status", [429, 503, b"", b"SSH-2.0-x\r\n", b"x" * 100_000, None])
async def test_a_collector_that_cannot_take_them_now_gets_them_later(collector, status):
    traces = exporter(collector.url, otlp_timeout_s=0.2 if status is None else 10)
    collector.status = status
    add(traces, "a")
    await traces.flush()
    collector.status = 200
    add(traces, "b")
    await traces.flush()
    assert collector.batches == [["a"], ["a", "b"]]


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_refused_traces_are_counted_and_not_sent_again(collector, status):
    refused = metrics.TRACES_DROPPED.labels("refused")
    before = refused._value.get()
    traces = exporter(collector.url)
    collector.status = status
    add(traces, "a", "b")
    await traces.flush()
    await traces.flush()
    assert collector.batches == [["a", "b"]]
    assert refused._value.get() - before == 2


async def test_while_the_collector_is_away_new_traces_above_the_bound_are_dropped(collector):
    full = metrics.TRACES_DROPPED.labels("full")
    before = full._value.get()
    traces = exporter(collector.url, traces_waiting_max=3)
    collector.status = 503
    for number in range(5):
        add(traces, str(number))
        await traces.flush()
    collector.status = 200
    await traces.flush()
    assert collector.batches[-1] == ["0", "1", "2"]
    assert full._value.get() - before == 2


async def test_an_export_that_is_cancelled_loses_nothing(collector):
    traces = exporter(collector.url, otlp_interval_s=0.001)
    collector.status = None
    add(traces, "a")
    loop = asyncio.create_task(traces.run_forever())
    await collector.got_one.wait()
    loop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loop
    collector.status = 200
    await traces.flush()
    assert collector.batches == [["a"], ["a"]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"otlp_endpoint": "127.0.0.1:4318"},
        {"otlp_endpoint": "http://"},
        {"otlp_endpoint": "http://name:secret@host"},
        {"otlp_endpoint": "http://host/a b"},
        {"otlp_endpoint": "http://host:99999"},
        {"otlp_headers": "authorization"},
        {"otlp_headers": "a b=c"},
        {"otlp_headers": "authorization=secret%0d%0ax: y"},
    ],
)
def test_wrong_settings_are_refused_by_name_without_a_secret(wrong):
    with pytest.raises(InvalidSettings, match=f"TENORA_{next(iter(wrong)).upper()}") as refused:
        settings_with(**wrong)
    assert "secret" not in str(refused.value)
