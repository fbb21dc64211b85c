"""Start and stop of a replica: not ready before it knows the revocations, and every token is counted at the end."""

import json
import signal
import threading
import time
from itertools import pairwise

import msgspec
import pytest
import redis

from core import redis_keys
from core.contracts.costs import CostWindow
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness, engine_name
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.quota.redis_commands import wait_for_commands

FAILURES = "tenora_replica_task_failures_total"


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        yield client


def test_a_replica_is_ready_only_after_it_refuses_and_removed_revoked_adapters(client, redis_server, tmp_path):
    name = engine_name()
    left_by_the_last_replica = tmp_path / f"{REPLICA}-cache" / name.partition("@")[2]
    left_by_the_last_replica.mkdir(parents=True)
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        wait_until(
            lambda: "waiting for revocations before becoming ready" in agent.log.read_text(), what="the agent to wait"
        )
        wait_for_commands(client, f"HMGET {redis_keys.SNAPSHOT_META}")
        harness = AgentHarness(client, None, agent)
        assert harness.status().state == "starting", "nothing is published, so it cannot know the revocations"
        revocation = harness.revocation(name)
        client.hset(redis_keys.snapshot("revocations"), revocation.id, msgspec.json.encode(revocation))
        harness.publisher = Publisher(client, processes.PEPPER)  # which publishes an epoch
        wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
        assert name.partition("@")[0] in harness.inventory()["revoked"]
        assert not left_by_the_last_replica.exists()
        assert wait_until(lambda: harness.removed(revocation)).boot_id == harness.status().boot_id
        assert "Traceback" not in agent.log.read_text()


def test_more_revocations_than_an_engine_can_refuse_stop_neither_the_replica_nor_the_newest(
    client, redis_server, tmp_path
):
    names = [engine_name() for _ in range(4)]
    with processes.agent(tmp_path, redis_server, REPLICA, revoked_adapters_max=2) as agent:
        harness = AgentHarness(client, Publisher(client, processes.PEPPER), agent)
        made = []
        for name in names[:3]:
            made.append(harness.revoke(name))
            time.sleep(0.01)  # ids sort by the millisecond
        wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
        wait_until(lambda: all(harness.removed(each) for each in made), what="every receipt")
        assert agent.metric("tenora_replica_revoked_over_limit_adapters") == 1
        assert {made[1].adapter_id, made[2].adapter_id} <= set(harness.inventory()["revoked"])
        last = harness.revoke(names[3])
        wait_until(lambda: harness.removed(last), what="the last one's receipt")
        assert {made[2].adapter_id, last.adapter_id} <= set(harness.inventory()["revoked"])
        assert agent.metric("tenora_replica_revoked_over_limit_adapters") == 2


def test_the_heartbeat_survives_the_failure_of_every_background_task(client, redis_server, tmp_path):
    publisher = Publisher(client, processes.PEPPER)
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        harness = AgentHarness(client, publisher, agent)
        wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
        for key in (
            redis_keys.canary_jobs("tiny-chat", 16), redis_keys.PREFETCH_HINTS,
            redis_keys.snapshot("pins"), redis_keys.snapshot("revocations"),
        ):  # fmt: skip
            client.delete(key)
            client.set(key, "of the wrong type, so that each read fails")
        publisher.tenant()  # publishes something, so that everything is read again
        for task in ("canaries", "hints", "pins", "revocations"):
            wait_until(lambda task=task: harness.agent.metric(FAILURES, f'{{task="{task}"}}') >= 2, what=task)
        beats = {harness.status().heartbeat_ms}
        wait_until(lambda: beats.add(harness.status().heartbeat_ms) or len(beats) >= 4, timeout_s=5, what="heartbeats")
        assert harness.status().state == "ready"
        revoked = engine_name()
        client.delete(redis_keys.snapshot("revocations"))
        revocation = harness.revoke(revoked)
        wait_until(lambda: harness.removed(revocation), what="the receipt after it recovered")


def test_revocations_known_before_redis_went_away_stay_in_force(tmp_path):
    with processes.valkey(tmp_path) as valkey:
        publisher = Publisher(valkey.client, processes.PEPPER)
        with processes.agent(tmp_path, valkey.url, REPLICA) as agent:
            harness = AgentHarness(valkey.client, publisher, agent)
            wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
            name = engine_name()
            harness.engine.faults(token_interval_s=0.1, output_tokens=30, times=1)
            asking = threading.Thread(target=lambda: harness.ask(name, tokens=30), daemon=True)
            asking.start()
            wait_until(lambda: any(name == line.get("model") for line in harness.engine.lines()), what="the request")
            harness.revoke(name)
            wait_until(lambda: name.partition("@")[0] in harness.inventory()["revoked"], what="the refusal")
            valkey.process.kill()
            valkey.process.wait()
            asking.join()
            wait_until(lambda: not harness.in_memory(name), what="the unload without Redis")
            before = agent.metric(FAILURES, '{task="revocations"}')
            wait_until(
                lambda: agent.metric(FAILURES, '{task="revocations"}') >= before + 2, what="more failed attempts"
            )
            assert name.partition("@")[0] in harness.inventory()["revoked"]
            assert agent.process.poll() is None


def test_a_replica_that_stops_ends_its_canary_and_reports_all_of_its_time_without_a_gap(client, redis_server, tmp_path):
    publisher, engine = Publisher(client, processes.PEPPER), {"token-interval-s": 0.05}
    with processes.agent(tmp_path, redis_server, REPLICA, engine=engine, cost_window_s=1) as agent:
        harness = AgentHarness(client, publisher, agent)
        wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
        boot_id = harness.status().boot_id
        wait_until(lambda: any(each.state == "ready" for each in cost_windows(client)), what="a window of service")
        harness.post_canary(engine_name())
        wait_until(lambda: any("logprobs" in line["body"] for line in agent.engine.received()), what="the canary")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(20) == 0
        assert client.llen(redis_keys.CANARY_RESULTS) == 1
        emitted = sum(journal.output_tokens for journal in agent.engine.journal().values())
    assert [client.exists(key(REPLICA)) for key in (redis_keys.replica, redis_keys.replica_residency)] == [0, 0]
    windows = cost_windows(client)
    assert {window.boot_id for window in windows} == {boot_id}
    assert [window.sequence for window in windows] == list(range(len(windows)))
    assert all(one.end_ms == two.start_ms for one, two in pairwise(windows))
    assert windows[0].state == "starting"
    assert [window.final for window in windows] == [False] * (len(windows) - 1) + [True]
    assert sum(window.probe_decode_tokens for window in windows) == emitted


def test_a_replica_is_ready_once_it_could_read_the_object_store_and_stays_ready_without_it(
    client, redis_server, tmp_path
):
    publisher, reason = Publisher(client, processes.PEPPER), "the object store refused the credentials"
    with processes.agent(
        tmp_path, redis_server, REPLICA, engine={"faults": json.dumps({"store_unreadable": reason})}
    ) as agent:
        harness = AgentHarness(client, publisher, agent)

        def published() -> tuple[str, str] | None:
            status = harness.status()
            return status and (status.state, status.reason)

        wait_until(lambda: published() == ("starting", reason), what="a replica that waits for the store")
        revocation = harness.revoke(engine_name())
        wait_until(lambda: harness.removed(revocation), what="the receipt of a replica that is not ready")
        assert published() == ("starting", reason)
        harness.engine.faults()
        wait_until(lambda: published() == ("ready", ""), what="a ready replica")
        harness.engine.faults(store_unreadable="gone")
        wait_until(lambda: published() == ("ready", "gone"), what="the reason of a replica that still serves")
        assert harness.ask("tiny-chat")["usage"]["completion_tokens"] == 2
        harness.engine.faults()
        wait_until(lambda: published() == ("ready", ""), what="the end of the reason")


def cost_windows(client) -> list[CostWindow]:
    return [
        msgspec.json.decode(fields[b"window"], type=CostWindow) for _, fields in client.xrange(redis_keys.COST_WINDOWS)
    ]
