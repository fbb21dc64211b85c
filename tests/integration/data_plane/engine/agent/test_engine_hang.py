"""An engine whose /health is fine and that generates nothing: its agent detects it, gateways send it no requests, and
it either recovers or is replaced. An engine that is only busy stays ready.
"""

import contextlib
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgspec
import openai
import pytest

from core import redis_keys
from core.contracts.costs import CostWindow
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness, running_agent
from tests.integration.data_plane.conftest import BRISK, chat

BRISK_PROBES = {"probe_every_s": 0.5, "probe_timeout_s": 1.0, "probe_failures_max": 20}
FOUND_S = 0.5 + 1.0 + 3 * 0.1  # plus three heartbeats of the harness's agent
MARGIN_S = 8.0  # for a machine that is busy with other work
PROBES = "tenora_replica_probes_total"


@contextlib.contextmanager
def running_agent_with_fast_probes(redis_url, folder, **settings) -> Iterator[AgentHarness]:
    with running_agent(redis_url, folder, **{**BRISK_PROBES, **settings}) as harness:
        yield harness
        assert "Traceback" not in harness.agent.log.read_text()


@contextlib.contextmanager
def sdk_of(harness, folder, redis_url) -> Iterator[openai.OpenAI]:
    """A tenant's client of a gateway in front of the harness's replica; it has been served once."""
    key = harness.publisher.key(harness.publisher.tenant())
    with (
        processes.gateway(folder, redis_url, **BRISK) as gateway,
        openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0, timeout=20) as client,
    ):
        wait_until(lambda: outcome(client) == "served", what="an answer")
        yield client


def outcome(client: openai.OpenAI) -> str:
    """The outcome of one stream: "served", or the error code. A gateway soon gives up a stream that never starts."""
    try:
        assert list(chat(client, stream=True))
    except openai.APIStatusError as refusal:
        return str(refusal.code)
    return "served"


def is_well(harness: AgentHarness) -> bool:
    with urllib.request.urlopen(f"{harness.engine.url}/health", timeout=5) as response:
        return response.status == 200


def asked_by_tenants(harness: AgentHarness) -> int:
    return sum("messages" in line["body"] for line in harness.engine.received())


def becomes(harness: AgentHarness, state: str, **options) -> None:
    wait_until(
        lambda: (status := harness.status()) and status.state == state, what=f"a replica that is {state}", **options
    )


def test_an_engine_that_hangs_gets_no_requests_until_it_generates_again(redis_server, tmp_path):
    with (
        running_agent_with_fast_probes(redis_server, tmp_path) as harness,
        sdk_of(harness, tmp_path, redis_server) as client,
    ):
        boot_id = harness.status().boot_id
        harness.engine.faults(hang=True)
        becomes(harness, "unhealthy", timeout_s=FOUND_S + MARGIN_S)
        assert is_well(harness)
        wait_until(lambda: outcome(client) == "no_replica", what="the gateway to read the status")
        before = asked_by_tenants(harness)
        assert [outcome(client) for _ in range(3)] == ["no_replica"] * 3
        assert asked_by_tenants(harness) == before
        assert harness.agent.metric("tenora_replica_ready") == 0
        harness.engine.faults()
        becomes(harness, "ready", timeout_s=FOUND_S + MARGIN_S)
        wait_until(lambda: outcome(client) == "served", what="an answer of the replica that recovered")
        assert harness.status().boot_id == boot_id, "the engine was not replaced"


def test_an_engine_that_keeps_hanging_is_replaced(redis_server, tmp_path):
    with running_agent_with_fast_probes(redis_server, tmp_path, probe_failures_max=2) as harness:
        harness.engine.faults(hang=True)
        assert harness.agent.process.wait(FOUND_S + 2 + MARGIN_S + 10) == 1  # its supervisor starts both again
        assert (harness.status().state, harness.status().pages_total) == ("failed", 0)
        with pytest.raises(urllib.error.URLError):
            is_well(harness)
        assert harness.status().reason == "the engine hangs: 2 probes in a row have failed"
        windows = [fields[b"window"] for _, fields in harness.client.xrange(redis_keys.COST_WINDOWS)]
        assert windows
        assert not any(msgspec.json.decode(window, type=CostWindow).final for window in windows)


def test_a_slow_probe_delays_no_heartbeat(redis_server, tmp_path):
    """Otherwise the status would expire during the first probe that waits in the queue of a busy engine."""
    with running_agent_with_fast_probes(
        redis_server, tmp_path, probe_timeout_s=60, status_ttl_s=2, drain_s=1
    ) as harness:
        harness.engine.faults(hang=True)
        answered = harness.agent.metric(PROBES, '{result="ok"}')
        beats = {harness.status().heartbeat_ms}
        wait_until(
            lambda: beats.add(harness.status().heartbeat_ms) or max(beats) - min(beats) > 4000, what="heartbeats"
        )
        assert harness.agent.metric(PROBES, '{result="ok"}') <= answered + 1, "none was slow"
        assert len(beats) > 5
        assert harness.status().state == "ready"


def test_an_engine_that_delays_a_probe_while_tokens_are_generated_is_not_hung(redis_server, tmp_path):
    """A probe times out beside a stream that gets a token every 0.8 s."""
    with running_agent_with_fast_probes(redis_server, tmp_path, probe_timeout_s=3) as harness:
        harness.engine.faults(token_interval_s=0.8, output_tokens=10)
        asking = threading.Thread(target=lambda: harness.ask("tiny-chat", tokens=10), daemon=True)
        asking.start()
        wait_until(lambda: asked_by_tenants(harness), what="the stream")
        harness.engine.faults(hang=True)
        wait_until(lambda: harness.agent.metric(PROBES, '{result="busy"}') >= 1, what="a probe that timed out")
        harness.engine.faults()
        assert harness.agent.metric(PROBES, '{result="failed"}') == 0
        assert harness.status().state == "ready"
        asking.join()


def test_a_draining_replica_is_draining_after_it_recovered_until_the_drain_is_cancelled(redis_server, tmp_path):
    with running_agent_with_fast_probes(redis_server, tmp_path) as harness:
        harness.client.set(redis_keys.replica_drain(REPLICA), harness.status().boot_id)
        becomes(harness, "draining")
        harness.engine.faults(hang=True)
        becomes(harness, "unhealthy")
        harness.engine.faults()
        seen: set[str] = set()
        wait_until(lambda: seen.add(harness.status().state) or "draining" in seen, what="the replica to recover")
        assert seen <= {"unhealthy", "draining"}
        harness.client.delete(redis_keys.replica_drain(REPLICA))
        becomes(harness, "ready")


def test_a_drain_outlives_a_scrape_that_fails_and_ends_when_the_engine_hangs(redis_server, tmp_path):
    with running_agent_with_fast_probes(redis_server, tmp_path, probe_failures_max=2, drain_s=600) as harness:
        harness.engine.faults(held=True, times=1)
        asking = threading.Thread(target=harness.ask_in_vain)
        asking.start()
        wait_until(lambda: harness.status().running_requests == 1, what="the request")
        harness.agent.process.send_signal(signal.SIGTERM)
        becomes(harness, "draining")
        harness.engine.faults(no_metrics=True)
        wait_until(lambda: harness.agent.log.read_text().count("engine scrape failed") >= 2, what="two failed scrapes")
        harness.engine.faults()
        before = harness.status().heartbeat_ms
        wait_until(lambda: harness.status().heartbeat_ms > before, what="the drain to go on")
        harness.engine.faults(hang=True)
        assert harness.agent.process.wait(FOUND_S + 2 + MARGIN_S + 10) == 1
        assert harness.status().reason == "the engine hangs: 2 probes in a row have failed"
        asking.join()
