"""The agent reports what its engine counted for requests that have ended, also the last ones before it stops."""

import httpx
import msgspec
import pytest
import redis

from core import redis_keys
from core.contracts.engine_usage import EngineUsageReport
from core.ids import new_id
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness
from tests.fixtures.gateway.published import Publisher

TENANT = new_id("tn")


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        yield client


def reports(client) -> list[EngineUsageReport]:
    entries = client.xrange(redis_keys.ENGINE_USAGE)
    return [msgspec.json.decode(fields[b"report"], type=EngineUsageReport) for _, fields in entries]


def counted(client) -> int:
    """The most tokens that a report says of the tenant."""
    hours = [hour for report in reports(client) for hour in report.hours if hour.tenant_id == TENANT]
    return max((hour.prompt_tokens + hour.output_tokens for hour in hours), default=0)


def ask(agent) -> int:
    """One answer as a gateway asks for it. Returns its tokens."""
    answer = httpx.post(
        f"{agent.engine.url}/v1/chat/completions",
        headers={
            "authorization": f"Bearer {processes.ENGINE_KEY}", "x-request-id": new_id("req"), "x-tenora-tenant": TENANT,
        },
        json={"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    )  # fmt: skip
    usage = answer.raise_for_status().json()["usage"]
    return usage["prompt_tokens"] + usage["completion_tokens"]


def test_counts_are_reported_repeated_and_sent_before_the_replica_stops(client, redis_server, tmp_path):
    publisher = Publisher(client, processes.PEPPER)
    with processes.agent(tmp_path, redis_server, REPLICA, engine_usage_repeat_s=1) as agent:
        harness = AgentHarness(client, publisher, agent)
        wait_until(lambda: (status := harness.status()) and status.state == "ready", what="a ready replica")
        tokens = ask(agent)
        wait_until(lambda: counted(client) == tokens, what="the first report")
        (first, *_) = reports(client)
        assert (first.replica_id, first.boot_id, first.base_model) == (REPLICA, harness.status().boot_id, "tiny-chat")
        client.delete(redis_keys.ENGINE_USAGE)  # Redis loses it before billing has read it
        wait_until(lambda: counted(client) == tokens, what="the same report once more")
        tokens += ask(agent)
    assert counted(client) == tokens
