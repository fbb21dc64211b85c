"""What the fleet process writes for placers, on real Postgres and Redis."""

import msgspec
import pytest

from control_plane.pools.wanted import FleetDecisions
from core import redis_keys
from core.contracts.fleet import WantedPool
from tests.fixtures.control_plane.registry_rows import beat

ROOT = "/api/v1/admin/pools"


@pytest.fixture
def decisions(engine, redis) -> FleetDecisions:
    return FleetDecisions(engine, redis, settle_s=0)


@pytest.fixture
def digests(api, base) -> list[str]:
    """Those of two revisions of a pool of two replicas; none is in force."""
    body = {"name": "chat", "base_model": base.id, "replicas_min": 2, "replicas_max": 2}
    api.admin.post(ROOT, json=body).raise_for_status()
    made = (
        api.admin.post(f"{ROOT}/chat/revisions", json={"weights": each * 64, "engine": "vllm"}) for each in ("a", "b")
    )
    return [each.raise_for_status().json()["digest"] for each in made]


def use(api, number: int) -> None:
    api.admin.put(f"{ROOT}/chat/revision", json={"revision": number}).raise_for_status()


def wanted(redis) -> dict[int, int] | None:
    encoded = redis.hget(redis_keys.FLEET_WANTED, "chat")
    if encoded is None:
        return None
    return {each.number: each.replicas for each in msgspec.json.decode(encoded, type=WantedPool).revisions}


def test_a_pool_moves_one_replica_at_a_time_and_a_new_leader_goes_on(api, engine, redis, base, decisions, digests):
    decisions.run_once()
    assert wanted(redis) is None, "no revision is in force"
    use(api, 1)
    decisions.run_once()
    assert wanted(redis) == {1: 2}
    for _ in range(2):
        beat(redis, base.id, pool="chat", revision=digests[0])
    use(api, 2)
    decisions.run_once()
    assert wanted(redis) == {2: 1, 1: 2}
    beat(redis, base.id, pool="chat", revision=digests[1], state="failed", pages_total=0)
    FleetDecisions(engine, redis, settle_s=0).run_once()
    assert wanted(redis) == {2: 1, 1: 2}, "the new replica has failed"
    for expected in ({2: 2, 1: 1}, {2: 2}):
        beat(redis, base.id, pool="chat", revision=digests[1])
        FleetDecisions(engine, redis, settle_s=0).run_once()
        assert wanted(redis) == expected


def test_what_redis_lost_is_decided_by_what_serves_once_heartbeats_are_back(api, engine, redis, base, digests):
    use(api, 2)
    cautious = FleetDecisions(engine, redis)
    cautious.run_once()
    assert wanted(redis) is None, "heartbeats may not be back yet"
    for _ in range(2):
        beat(redis, base.id, pool="chat", revision=digests[0])
    FleetDecisions(engine, redis, settle_s=0).run_once()
    assert wanted(redis) == {2: 1, 1: 2}


def test_one_process_decides_at_a_time(api, engine, redis, decisions, digests):
    use(api, 1)
    with engine.connect() as leader:
        leader.exec_driver_sql("SELECT pg_advisory_lock(7301945137)")
        decisions.run_once()
        assert wanted(redis) is None
        leader.exec_driver_sql("SELECT pg_advisory_unlock(7301945137)")
    decisions.run_once()
    assert wanted(redis) == {1: 2}


def test_an_entry_of_an_unknown_form_is_decided_again(api, redis, decisions, digests):
    use(api, 1)
    redis.hset(redis_keys.FLEET_WANTED, "chat", b"{]")
    decisions.run_once()
    assert wanted(redis) == {1: 2}
