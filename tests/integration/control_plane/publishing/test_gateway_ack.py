""" "Every live gateway has it" means that the change was published and every valid status confirms it; nothing is
assumed.
"""

import threading

import msgspec
import pytest

from control_plane.dependencies import open_redis
from control_plane.publishing.gateway_ack import AckScan, AckWaiter
from control_plane.publishing.outbox import publish_change
from core import redis_keys
from core.contracts.snapshots import GatewayStatus
from core.db import unit_of_work


@pytest.fixture
def published(relay):
    """The snapshot has an epoch."""
    while relay.run_once():
        pass


def change(engine) -> int:
    with unit_of_work(engine) as session:
        note = publish_change(session, "tenants", "tn_none")
    return note.id


def beat(redis, gateway_id: str, *, behind: int = 0, epoch: str | None = None) -> None:
    now_epoch, generation = redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
    status = GatewayStatus(
        id=gateway_id, epoch=epoch or now_epoch.decode(), generation=int(generation) - behind, heartbeat_ms=1
    )
    redis.set(redis_keys.gateway(gateway_id), msgspec.json.encode(status), px=60_000)
    redis.zadd(redis_keys.GATEWAYS, {gateway_id: 1})


async def acknowledged(engine, redis, change_id: int, wait_ms: int = 300):
    return await AckWaiter(engine, redis, wait_ms=wait_ms).wait([change_id])


async def test_a_change_that_is_not_published_is_not_acknowledged(engine, redis, relay, published):
    beat(redis, "gw_1")
    waiting = change(engine)
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (False, 0)
    assert said.waited_ms >= 300
    relay.run_once()
    beat(redis, "gw_1")
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (True, 1)


async def test_valid_statuses_are_awaited_and_expired_ones_are_not(engine, redis, relay, published):
    waiting = change(engine)
    relay.run_once()
    beat(redis, "gw_1")
    beat(redis, "gw_2", behind=1)
    redis.zadd(redis_keys.GATEWAYS, {"gw_dead": 1})
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (False, 1)
    threading.Timer(0.1, beat, (redis, "gw_2")).start()
    said = await acknowledged(engine, redis, waiting, wait_ms=10_000)
    assert (said.acknowledged, said.gateways) == (True, 2)
    assert said.waited_ms < 10_000


async def test_without_a_live_gateway_there_is_nothing_to_wait_for(engine, redis, relay, published):
    waiting = change(engine)
    relay.run_once()
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (True, 0)


async def test_a_redis_that_lost_its_data_proves_nothing_about_gateways(engine, redis, relay, published):
    """Gateways that were alive may serve until their lease ends, although their heartbeats are lost."""
    waiting = change(engine)
    relay.run_once()
    beat(redis, "gw_1", behind=1)
    redis.flushdb()
    assert not (await acknowledged(engine, redis, waiting)).acknowledged, "no gateway has noticed yet"
    while relay.run_once():
        pass
    assert not (await acknowledged(engine, redis, waiting)).acknowledged
    assert 50 < redis.ttl(redis_keys.SNAPSHOT_UNSURE) <= 60
    redis.delete(redis_keys.SNAPSHOT_UNSURE)
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (True, 0)


async def test_a_gateway_of_an_older_epoch_has_no_change_and_one_of_a_newer_epoch_has_all(
    engine, redis, relay, published
):
    beat(redis, "gw_old")
    waiting = change(engine)
    relay.rebuild("test")
    relay.run_once()
    said = await acknowledged(engine, redis, waiting)
    assert (said.acknowledged, said.gateways) == (False, 0)
    beat(redis, "gw_old")
    assert (await acknowledged(engine, redis, waiting)).acknowledged


async def test_a_rebuild_during_the_wait_is_no_gap(engine, redis, relay, published):
    """The change was published in one epoch; a gateway that is behind in it continues directly with the next epoch."""
    waiting = change(engine)
    relay.run_once()
    beat(redis, "gw_1", behind=1)

    def rebuilt() -> None:
        relay.rebuild("test")
        beat(redis, "gw_1")

    threading.Timer(0.1, rebuilt).start()
    said = await acknowledged(engine, redis, waiting, wait_ms=10_000)
    assert (said.acknowledged, said.gateways) == (True, 1)


async def test_an_unreachable_redis_is_no_acknowledgement_and_no_error(engine, redis, relay, published):
    waiting = change(engine)
    relay.run_once()
    unreachable = open_redis("redis://127.0.0.1:1/0")
    said = await acknowledged(engine, unreachable, waiting)
    assert (said.acknowledged, said.gateways) == (False, 0)


def test_changes_published_meanwhile_are_not_awaited(engine, redis, relay, published):
    waiting = change(engine)
    relay.run_once()
    beat(redis, "gw_1", behind=1)
    scan = AckScan(engine, redis, [waiting])
    assert not scan.run_once()
    for others in range(1, 4):
        change(engine)
        relay.run_once()
        beat(redis, "gw_1", behind=others)
        assert scan.run_once()
    beat(redis, "gw_1", behind=4)
    assert not scan.run_once()
    assert scan.awaited == ["gw_1"]
