"""A replica's id belongs to one agent that lives. What it is doing is published from its first second to its last."""

import shutil
import signal
import threading

import msgspec
import pytest
import redis

from control_plane.fleet import service as fleet
from core import redis_keys
from core.contracts.costs import CostWindow
from core.contracts.replicas import Cordon
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness, engine_name, running_agent
from tests.fixtures.gateway.published import Publisher

REMOVALS = "tenora_replica_revocations_total"


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        Publisher(client, processes.PEPPER)
        yield client


def becomes(harness: AgentHarness, state: str) -> None:
    wait_until(lambda: (status := harness.status()) and status.state == state, what=f"a replica that is {state}")


def tokens_of(harness: AgentHarness) -> int:
    return sum(journal.output_tokens for journal in harness.engine.journal().values())


@pytest.mark.parametrize("place", ["the same folder", "a copy", "an empty folder"])
def test_a_second_agent_with_the_id_ends_and_leaves_the_first_alone(redis_server, tmp_path, place):
    with running_agent(redis_server, tmp_path, status_ttl_s=1) as harness:
        before = harness.status()
        folder = tmp_path if place == "the same folder" else tmp_path / "elsewhere"
        if place == "a copy":
            shutil.copytree(tmp_path / "run", folder / "run")
        folder.mkdir(exist_ok=True)
        with (
            pytest.raises(AssertionError, match="replica_id_taken"),
            processes.agent(folder, redis_server, REPLICA, status_ttl_s=1, metrics_port=0),
        ):
            pytest.fail("it started")
        after = harness.status()
        assert (after.boot_id, after.state, after.url) == (before.boot_id, "ready", before.url)
        assert harness.agent.process.poll() is None
    windows = [fields[b"window"] for _, fields in harness.client.xrange(redis_keys.COST_WINDOWS)]
    assert {msgspec.json.decode(each, type=CostWindow).boot_id for each in windows} == {before.boot_id}


def test_an_agent_that_lost_its_id_serves_what_it_has_and_never_publishes_again(redis_server, tmp_path):
    with running_agent(redis_server, tmp_path, drain_s=600) as harness:
        harness.engine.faults(token_interval_s=0.1, output_tokens=2000, times=1)
        asking = threading.Thread(target=harness.ask_in_vain)
        asking.start()
        wait_until(lambda: (status := harness.status()) and status.running_requests == 1, what="a long request")
        other = msgspec.structs.replace(harness.status(), boot_id="boot_other", run_dir_id="another")
        harness.client.set(redis_keys.replica(REPLICA), msgspec.json.encode(other))
        wait_until(lambda: "replica_id_taken" in harness.agent.log.read_text(), what="the end of its id")
        revocation = harness.revoke(engine_name())
        wait_until(lambda: harness.agent.metric(REMOVALS, '{result="removed"}') == 1, what="the removal")
        harness.agent.process.send_signal(signal.SIGTERM)
        emitted = tokens_of(harness)
        wait_until(lambda: tokens_of(harness) >= emitted + 10, what="the request to go on")
        assert harness.status() == other
        harness.client.delete(redis_keys.replica(REPLICA))
        harness.agent.process.send_signal(signal.SIGTERM)
        assert harness.agent.process.wait(10) == 1
        assert (harness.status(), harness.receipt(revocation)) == (None, None)
        asking.join()


def test_an_agent_follows_a_killed_one_at_once_from_its_folder_and_elsewhere_when_its_status_expires(
    client, redis_server, tmp_path
):
    def boot(folder, **settings) -> str:
        folder.mkdir(exist_ok=True)
        with processes.agent(folder, redis_server, REPLICA, **settings) as agent:
            harness = AgentHarness(client, None, agent)
            wait_until(lambda: (status := harness.status()) and status.boot_id not in boots, what="the next boot")
            agent.process.kill()
            agent.process.wait()
            return harness.status().boot_id

    boots: list[str] = []
    boots.append(boot(tmp_path, status_ttl_s=60))
    boots.append(boot(tmp_path, status_ttl_s=2))
    boots.append(boot(tmp_path / "another", status_ttl_s=2))
    assert len({*boots}) == 3


def test_a_replica_says_that_it_starts_before_its_engine_answers(client, redis_server, tmp_path):
    with processes.agent(tmp_path, redis_server, REPLICA, engine={"start-s": 2}, node="node-7") as agent:
        harness = AgentHarness(client, None, agent)
        becomes(harness, "starting")
        status = harness.status()
        assert (status.node, status.pages_total, status.has_engine, status.reason) == ("node-7", 0, False, "")
        assert [each.state for each in fleet.list_replicas(client)] == ["starting"]
        assert fleet.statuses(client) == [], "no revocation waits for an engine that has loaded nothing"
        becomes(harness, "ready")
        assert [each.id for each in fleet.statuses(client)] == [REPLICA]


def test_a_failed_start_leaves_its_reason_for_a_minute(client, redis_server, tmp_path):
    with processes.agent(tmp_path, redis_server, REPLICA, engine={"start-fails": 1, "start-s": 1}, ends=True) as agent:
        assert agent.process.wait(20) == 1
    status = AgentHarness(client, None, agent).status()
    assert (status.state, status.reason) == (
        "failed",
        "the engine ended with status 3 at its start; its log says why",
    )
    assert 50_000 < client.pttl(redis_keys.replica(REPLICA)) <= 60_000
    with processes.agent(tmp_path / "..", redis_server, REPLICA) as agent:
        becomes(AgentHarness(client, None, agent), "ready")


def test_replicas_that_are_long_gone_are_forgotten(client, redis_server, tmp_path):
    client.zadd(redis_keys.REPLICAS, {f"rep_{number}": number for number in range(10_001)})
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        becomes(AgentHarness(client, None, agent), "ready")
        assert client.zrange(redis_keys.REPLICAS, 0, -1) == [REPLICA.encode()]


def test_a_second_signal_ends_a_drain(redis_server, tmp_path):
    with running_agent(redis_server, tmp_path, drain_s=600) as harness:
        harness.engine.faults(token_interval_s=0.1, output_tokens=2000, times=1)
        asking = threading.Thread(target=harness.ask_in_vain)
        asking.start()
        wait_until(lambda: (status := harness.status()) and status.running_requests == 1, what="a long request")
        harness.agent.process.send_signal(signal.SIGTERM)
        becomes(harness, "draining")
        assert harness.agent.process.poll() is None
        harness.agent.process.send_signal(signal.SIGTERM)
        assert harness.agent.process.wait(10) == 0
        assert harness.status() is None
        asking.join()


def test_a_drain_is_for_one_boot(client, redis_server, tmp_path):
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        harness = AgentHarness(client, None, agent)
        becomes(harness, "ready")
        client.set(redis_keys.replica_drain(REPLICA), harness.status().boot_id)
        becomes(harness, "draining")
        agent.process.kill()
        agent.process.wait()
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        becomes(AgentHarness(client, None, agent), "ready")


def test_a_cordoned_node_serves_nothing_from_its_start_on_until_the_cordon_is_lifted(client, redis_server, tmp_path):
    publisher = Publisher(client, processes.PEPPER)
    publisher.put("cordons", "node/node-7", Cordon(reason="memory errors"))
    unreadable = {"faults": '{"store_unreadable": "gone"}'}
    with processes.agent(tmp_path, redis_server, REPLICA, engine=unreadable, node="node-7") as agent:
        harness = AgentHarness(client, None, agent)
        becomes(harness, "draining")
        assert harness.status().reason == "node/node-7 is cordoned: memory errors"
        harness.engine.faults()
        publisher.put("cordons", "node/node-7", None)
        becomes(harness, "ready")
        publisher.put("cordons", f"replica/{REPLICA}", Cordon(reason="a test"))
        becomes(harness, "draining")


def test_a_new_id_accepts_no_snapshot_older_than_another_of_its_folder_has_seen(client, redis_server, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "newest-snapshot").write_text(str(1 << 50))
    with processes.agent(tmp_path, redis_server, REPLICA) as agent:
        wait_until(lambda: "older than one that was seen before" in agent.log.read_text(), what="the refusal")
        assert AgentHarness(client, None, agent).status().state == "starting"
