"""A replica as a program of the stack: when its start is a success, by its real agent, and how long it may stop."""

from urllib.parse import urlsplit

import redis

from core.contracts.replicas import Cordon
from tenora.stack import daemon
from tenora.stack.definition import has_started
from tenora.stack.program import answers
from tenora.stack.supervisor import DRAIN_ENDS_S
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness
from tests.fixtures.gateway.published import Publisher


def test_a_replica_has_started_when_it_is_ready_and_also_when_it_is_cordoned(redis_server, tmp_path):
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        with processes.agent(tmp_path, redis_server, REPLICA) as agent:
            port = urlsplit(agent.metrics_url).port
            assert not has_started(port), "nothing is published, so it waits for the revocations"
            publisher = Publisher(client, processes.PEPPER)
            publisher.put("cordons", f"replica/{REPLICA}", Cordon(reason="a test"))
            harness = AgentHarness(client, None, agent)
            wait_until(lambda: (status := harness.status()) and status.state == "draining", what="a drain")
            assert has_started(port)
            assert not answers(f"http://127.0.0.1:{port}/readyz")
            publisher.put("cordons", f"replica/{REPLICA}", None)
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), what="a ready replica")
            assert has_started(port)


def test_a_replica_has_time_to_drain_and_down_waits_for_the_slowest_program_and_then_for_the_stores(define):
    programs = {program.name: program for program in define().programs()}
    replica = programs["replica"]
    assert float(replica.env["TENORA_DRAIN_S"]) < replica.drain_s
    slowest = max(program.stop_s + (DRAIN_ENDS_S if program.drain_s else 0) for program in programs.values())
    assert slowest + programs["valkey"].stop_s < daemon._STOP_TIMEOUT_S < 600
