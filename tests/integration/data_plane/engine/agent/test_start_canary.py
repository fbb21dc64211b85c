"""A new replica runs adapters that others serve before it is ready."""

import json
from pathlib import Path

import msgspec
import pytest

from core import redis_keys
from core.clock import now_ms
from core.contracts.replicas import ReplicaStatus, Residency
from core.contracts.revocations import Revocation
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, engine_name
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.gateway.requests import replica_status

SERVED = [engine_name(), engine_name()]


@pytest.fixture
def client(redis):
    """A ready replica of the same base model serves two adapters."""
    Publisher(redis, processes.PEPPER).base_model()
    other = replica_status("rep_other", base_model="tiny-chat", rank_max=16, residency_version=1)
    residency = Residency(replica_id="rep_other", boot_id="b", version=1, slots=(*SERVED, None), memory=(), disk=())
    redis.set(redis_keys.replica("rep_other"), msgspec.json.encode(other))
    redis.set(redis_keys.replica_residency("rep_other"), msgspec.json.encode(residency))
    redis.zadd(redis_keys.REPLICAS, {"rep_other": now_ms()})
    return redis


@pytest.fixture
def starting(client, redis_server, tmp_path: Path):
    """Starts a replica with these faults of its engine."""

    def start(*, ends: bool = False, faults: dict | None = None, **settings: object):
        engine = {"faults": json.dumps(faults or {})}
        return processes.agent(tmp_path, redis_server, REPLICA, engine=engine, ends=ends, **settings)

    return start


def status(client) -> ReplicaStatus | None:
    found = client.get(redis_keys.replica(REPLICA))
    return msgspec.json.decode(found, type=ReplicaStatus) if found else None


def asked(agent) -> set[str]:
    """The adapters that its engine ran."""
    return {line["body"]["model"] for line in agent.engine.received()} & set(SERVED)


def wait_until_ready(client) -> None:
    wait_until(lambda: (found := status(client)) and found.state == "ready", what="a ready replica")


def test_it_runs_what_others_serve_and_then_is_ready(client, starting):
    with starting() as agent:
        wait_until_ready(client)
        assert asked(agent) == set(SERVED)


@pytest.mark.parametrize(
    ("faults", "code"),
    [({"mimic_base": True}, "canary_no_effect"), ({"logprob": None, "adapters_only": True}, "canary_not_finite")],
    ids=str,
)
def test_an_engine_on_which_a_served_adapter_fails_never_is_ready_and_says_why(client, starting, faults, code):
    with starting(ends=True, faults=faults) as agent:
        assert agent.process.wait(60) == 1
    failed = status(client)
    assert failed.state == "failed"
    assert failed.reason.startswith(f"{code}: adapter ad_")


def test_a_run_without_a_verdict_keeps_no_replica_away(client, starting):
    with starting(faults={"loading": "2", "adapters_only": True}):
        wait_until_ready(client)


def test_it_runs_no_revoked_adapter_and_at_most_so_many(client, starting):
    publisher = Publisher(client, processes.PEPPER)
    publisher.base_model()
    revocation = Revocation(
        id="rvk_1", adapter_id=SERVED[0].partition("@")[0], base_model="tiny-chat", engine_names=(SERVED[0],)
    )
    publisher.put("revocations", revocation.id, revocation)
    with starting() as agent:
        wait_until_ready(client)
        assert asked(agent) == {SERVED[1]}


@pytest.mark.parametrize(("most", "pool"), [(0, ""), (3, "another-pool")])
def test_it_runs_none_where_none_are_asked_for_or_another_pool_serves_them(client, starting, most, pool):
    other = replica_status("rep_other", base_model="tiny-chat", rank_max=16, residency_version=1, pool=pool)
    client.set(redis_keys.replica("rep_other"), msgspec.json.encode(other))
    with starting(canary_start_adapters_max=most) as agent:
        wait_until_ready(client)
        assert asked(agent) == set()
