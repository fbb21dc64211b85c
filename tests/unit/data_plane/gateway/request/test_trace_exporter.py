"""Traces reach a collector in order; one that cannot take them gets them later, and one that refuses them does not."""

import json
from collections.abc import Iterator

import pytest

from core.errors import InvalidSettings
from data_plane.gateway import metrics
from data_plane.gateway.request.trace_exporter import TraceExporter
from tests.fixtures.gateway.otlp_collector import OK, OtlpCollector, otlp_collector
from tests.fixtures.gateway.requests import settings_with


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as collector:
        yield collector


def exporter(url: str, *names: str, **settings: object) -> TraceExporter:
    """Traces with one span of each name wait in it."""
    made = TraceExporter(settings_with(otlp_endpoint=url, **{"otlp_timeout_s": 10, **settings}), "gw_1")
    for name in names:
        made.add(json.dumps({"name": name}).encode())
    return made


def batches(collector: OtlpCollector) -> list[str]:
    return ["".join(span["name"] for span in spans) for spans in collector.batches.queue]


async def test_traces_are_posted_in_order_with_the_headers(collector):
    traces = exporter(collector.url + "/otlp/", *"ab" * 129, otlp_headers="authorization=Bearer%20x, x-team=a")
    await traces.flush()
    await traces.flush()
    assert batches(collector) == ["ab" * 128, "ab"]
    assert collector.headers.items() >= {"path": "/otlp/v1/traces", "authorization": "Bearer x", "x-team": "a"}.items()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reply", [b"HTTP/1.1 429 x\r\n\r\n", b"HTTP/1.1 503 x\r\n\r\n", b"", b"x" * 100_000, None])
async def test_a_collector_that_cannot_take_them_now_gets_them_later(collector, reply):
    traces = exporter(collector.url, *"abc", otlp_timeout_s=10 if reply is not None else 0.2, traces_waiting_max=2)
    collector.reply = reply
    await traces.flush()
    collector.reply = OK
    await traces.flush()
    assert batches(collector) == ["ab", "ab"], "c was too much"


@pytest.mark.parametrize("status", [400, 500])
async def test_refused_traces_are_counted_and_not_sent_again(collector, status):
    refused = metrics.TRACES_DROPPED.labels("refused")
    before = refused._value.get()
    traces = exporter(collector.url, *"ab")
    collector.reply = b"HTTP/1.1 %d x\r\n\r\n" % status
    await traces.flush()
    await traces.flush()
    assert batches(collector) == ["ab"]
    assert refused._value.get() - before == 2


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (
            "otlp_endpoint",
            ["127.0.0.1:4318", "http://", "http://a:secret@host", "http://host/a b", "http://host:99999"],
        ),
        ("otlp_headers", ["secret", "a b=secret", "authorization=secret%0d%0ax: y"]),
    ],
)
def test_wrong_settings_are_refused_by_name_without_a_secret(name, wrong):
    for value in wrong:
        with pytest.raises(InvalidSettings, match=f"TENORA_{name.upper()}") as refused:
            settings_with(**{name: value})
        assert "secret" not in str(refused.value)
