"""A collector gets traces of slow and failed requests and of those that callers choose; one that hangs is harmless."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.otlp_collector import OtlpCollector, attributes, otlp_collector
from tests.integration.data_plane.conftest import BRISK, chat

SECRET = "do not repeat me"
PAGES = 80
MOST_OF_THE_PAGES: dict[str, Any] = {"content": SECRET, "max_tokens": PAGES * 10, "stream": True}


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def witnesses():
    return {"rep_one": {"pages": PAGES}}


@pytest.fixture(scope="module")
def gateway_settings(collector):
    return {
        "otlp_endpoint": collector.url, "otlp_interval_s": 0.05, "trace_share": 0, "trace_first_token_ms": 60_000,
        "trace_itl_ms": 1500, "inter_token_s": 10, "queue_wait_s": 10,
    }  # fmt: skip


def test_a_slow_request_and_a_failed_one_are_traced_and_a_fast_one_is_not(stack, tenant, collector):
    client = tenant.sdk()
    list(chat(client, SECRET, stream=True, max_tokens=3))
    with pytest.raises(openai.NotFoundError):
        chat(client, SECRET, model="missing")
    stack.witness.faults(token_interval_s=2, output_tokens=2)
    list(chat(client, SECRET, stream=True))
    slow = collector.batches.get(timeout=20)
    stack.witness.faults(cut_after=2)
    with pytest.raises(openai.APIError):
        list(chat(client, SECRET, stream=True, max_tokens=9))
    failed = collector.batches.get(timeout=20)
    assert [span["name"] for span in slow] == [
        "POST /v1/chat/completions", "authenticate and prepare", "admit", "chat tiny-chat", "prefill", "decode",
        "settle",
    ]  # fmt: skip
    assert len(slow) == len(failed)
    event = sorted(tenant.events(), key=lambda event: event.settled_at_ms)[-2]
    found = attributes(*slow)
    assert (found["tenora.trace_reason"], found["tenora.request_id"]) == ("slow", event.request_id)
    assert (found["tenora.tenant_id"], found["gen_ai.usage.output_tokens"]) == (tenant.id, str(event.output_tokens))
    assert int(slow[0]["endTimeUnixNano"]) - int(slow[0]["startTimeUnixNano"]) >= 2e9
    assert attributes(*failed).items() >= {"tenora.trace_reason": "error", "tenora.outcome": "replica_gone"}.items()
    assert (slow[0]["status"], failed[0]["status"]) == ({}, {"code": 2})
    assert SECRET not in (written := json.dumps([slow, failed]))
    assert tenant.key not in written


def test_a_sampled_traceparent_is_joined_by_a_request_that_waits_and_loads_its_adapter(stack, tenant, collector):
    stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in [model.id for model in client.models.list()], what="the adapter to be listed")
    sampled = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    stack.witness.faults(held=True, times=1)
    with chat(client, **MOST_OF_THE_PAGES) as running, ThreadPoolExecutor() as callers:
        next(iter(running))
        stack.witness.faults(load='{"tier":"store","load_ms":1,"stall_ms":0}')
        waiting = callers.submit(
            lambda: list(chat(client, model="bot", extra_headers=sampled, **MOST_OF_THE_PAGES)),
        )
        wait_until(lambda: stack.gateway.metric("tenora_gateway_waiting_requests") == 1, what="a waiting request")
        stack.witness.release(1)
        list(running)
        waiting.result(timeout=20)
    spans = collector.batches.get(timeout=20)
    assert [span["name"] for span in spans[2:7]] == ["admit", "queue", "chat tiny-chat", "adapter load", "prefill"]
    assert (spans[0]["traceId"], spans[0]["parentSpanId"]) == ("ab" * 16, "cd" * 8)
    lines = [json.loads(line) for line in stack.gateway.log.read_text().splitlines() if "trace_id" in line]
    [line] = [line for line in lines if line["trace_id"] == "ab" * 16]
    assert line["request_id"] == attributes(*spans)["tenora.request_id"]


def test_a_collector_that_hangs_costs_no_request_no_memory_and_no_shutdown(stack, tenant):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, nothing answers
        settings = {
            "otlp_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "otlp_interval_s": 0.01,
            "otlp_timeout_s": 1, "trace_share": 1, "traces_waiting_max": 2,
        }  # fmt: skip
        with processes.gateway(stack.folder, stack.redis_url, "hung", **BRISK | settings) as gateway:
            client = tenant.sdk(gateway.url)
            for _ in range(5):
                chat(client, max_tokens=2)
            dropped = ("tenora_gateway_traces_dropped_total", '{reason="full"}')
            wait_until(lambda: gateway.metric(*dropped) == 3, what="three dropped traces")
            gateway.process.terminate()
            assert gateway.process.wait(timeout=10) == 0
