"""A collector gets traces of slow and failed requests and of those that callers choose; one that hangs is harmless."""

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, chat

SECRET = "do not repeat me"
TRACE, SPAN = "ab" * 16, "cd" * 8
SAMPLED = f"00-{TRACE}-{SPAN}-01"
PAGES = 80
MOST_OF_THE_PAGES: dict[str, Any] = {
    "model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": PAGES * 16 * 6 // 10,
    "stream": True,
}  # fmt: skip
TARGETS = {
    "trace_first_token_ms": 60_000,
    "trace_itl_ms": 1500,
    "inter_token_s": 10,
    "queue_wait_s": 10,
    "otlp_interval_s": 0.05,
}


class Trace:
    """The spans of one trace, the root first."""

    def __init__(self, spans: list[dict]) -> None:
        self.root = spans[0]
        self.names = [span["name"] for span in spans]
        self.attributes = {
            each["key"]: next(iter(each["value"].values())) for span in spans for each in span["attributes"]
        }


class Receiver(BaseHTTPRequestHandler):
    """An OTLP receiver that keeps the traces in the order of their arrival."""

    traces: queue.Queue[Trace]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert SECRET.encode() not in body
        json_format.Parse(body, ExportTraceServiceRequest())
        [scope] = json.loads(body)["resourceSpans"][0]["scopeSpans"]
        by_trace: dict[str, list[dict]] = {}
        for span in scope["spans"]:
            by_trace.setdefault(span["traceId"], []).append(span)
        for spans in by_trace.values():
            self.traces.put(Trace(spans))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def received() -> Iterator[tuple[str, "queue.Queue[Trace]"]]:
    traces: queue.Queue[Trace] = queue.Queue()
    with HTTPServer(("127.0.0.1", 0), type("Receiving", (Receiver,), {"traces": traces})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", traces
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def witnesses():
    return {"rep_one": {"pages": PAGES}}


@pytest.fixture(scope="module")
def gateway_settings(received):
    return {**TARGETS, "otlp_endpoint": received[0], "trace_share": 0}


def test_a_slow_request_and_a_failed_one_are_traced_and_a_fast_one_is_not(stack, tenant, received):
    client, traces = tenant.sdk(), received[1]
    chat(client, SECRET, max_tokens=3)
    list(chat(client, SECRET, stream=True, max_tokens=3))
    with pytest.raises(openai.NotFoundError):
        chat(client, SECRET, model="missing")
    stack.witness.faults(token_interval_s=2, output_tokens=2)
    list(chat(client, SECRET, stream=True))
    slow = traces.get(timeout=20)
    stack.witness.faults(cut_after=2)
    with pytest.raises(openai.APIError):
        list(chat(client, SECRET, stream=True, max_tokens=9))
    failed = traces.get(timeout=20)
    assert traces.empty()
    assert slow.names == [
        "POST /v1/chat/completions", "authenticate and prepare", "admit", "chat tiny-chat", "prefill", "decode",
        "settle",
    ]  # fmt: skip
    events = sorted(tenant.events(), key=lambda event: event.settled_at_ms)
    assert slow.root["status"] == {}
    assert slow.attributes["tenora.trace_reason"] == "slow"
    assert slow.attributes["tenora.request_id"] == events[-2].request_id
    assert slow.attributes["tenora.tenant_id"] == tenant.id
    assert slow.attributes["gen_ai.usage.output_tokens"] == str(events[-2].output_tokens)
    assert int(slow.root["endTimeUnixNano"]) - int(slow.root["startTimeUnixNano"]) >= 2e9
    assert failed.root["status"] == {"code": 2}
    assert (failed.attributes["tenora.trace_reason"], failed.attributes["tenora.outcome"]) == ("error", "replica_gone")
    assert tenant.key not in json.dumps(slow.attributes)


def test_a_sampled_traceparent_is_joined_and_the_access_log_names_the_trace(stack, tenant, received):
    client = tenant.sdk()
    chat(client, max_tokens=2, extra_headers={"traceparent": SAMPLED[:-1] + "0"})
    chat(client, max_tokens=2, extra_headers={"traceparent": SAMPLED})
    joined = received[1].get(timeout=20)
    assert (joined.root["traceId"], joined.root["parentSpanId"]) == (TRACE, SPAN)
    assert joined.attributes["tenora.trace_reason"] == "caller"
    lines = [json.loads(line) for line in stack.gateway.log.read_text().splitlines() if "request_id" in line]
    of_tenant = [(line["request_id"], line["trace_id"]) for line in lines if line.get("tenant") == tenant.id]
    assert of_tenant[-1] == (joined.attributes["tenora.request_id"], TRACE)
    assert of_tenant[-2][1] is None, "it was not chosen"


def test_a_request_that_waits_and_loads_an_adapter_shows_both(stack, tenant, received):
    stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in [model.id for model in client.models.list()], what="the adapter to be listed")
    stack.witness.faults(held=True, times=1)
    with client.chat.completions.create(**MOST_OF_THE_PAGES) as running, ThreadPoolExecutor() as callers:
        next(iter(running))
        stack.witness.faults(load='{"tier":"store","load_ms":1,"stall_ms":0}')
        asked = MOST_OF_THE_PAGES | {"model": "bot", "extra_headers": {"traceparent": SAMPLED}}
        waiting = callers.submit(lambda: list(client.chat.completions.create(**asked)))
        wait_until(lambda: stack.gateway.metric("tenora_gateway_waiting_requests") == 1, what="a waiting request")
        stack.witness.release(1)
        list(running)
        waiting.result(timeout=20)
    names = received[1].get(timeout=20).names
    assert names[2:7] == ["admit", "queue", "chat tiny-chat", "adapter load", "prefill"]


def test_a_collector_that_hangs_costs_no_request_no_memory_and_no_shutdown(stack, tenant):
    with contextlib.ExitStack() as up:
        silent = up.enter_context(socket.create_server(("127.0.0.1", 0)))  # the kernel accepts, nothing answers
        settings = {
            "otlp_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "otlp_interval_s": 0.01,
            "otlp_timeout_s": 1, "trace_share": 1, "traces_waiting_max": 2,
        }  # fmt: skip
        gateway = up.enter_context(processes.gateway(stack.folder, stack.redis_url, "hung", **BRISK | settings))
        client = tenant.sdk(gateway.url)
        for _ in range(5):
            chat(client, max_tokens=2)
        dropped = "tenora_gateway_traces_dropped_total"
        wait_until(lambda: gateway.metric(dropped, '{reason="full"}') == 3, what="three dropped traces")
        gateway.process.terminate()
        assert gateway.process.wait(timeout=10) == 0
