"""A gateway that follows hundreds of replicas reads a part of the heartbeats at each look and misses none."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio

from core import redis_keys
from data_plane.gateway.admission.fair_queue import QueueBounds
from data_plane.gateway.admission.pool_queue import WaitLimits
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.scheduling.fair_share import BacklogBounds
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import PlacementCosts
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.state.redis_clock import RedisClock
from tests.fixtures.gateway.requests import inference_request, replica_status

MANY = 400
COSTS = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0
)  # fmt: skip


@pytest.fixture
async def client(redis_settings) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_settings.redis_url) as client:
        await client.mset({redis_keys.replica(name(number)): encoded(number) for number in range(MANY)})
        await client.zadd(redis_keys.REPLICAS, {name(number): number for number in range(MANY)})
        yield client


@pytest.fixture
async def replicas(client) -> Replicas:
    made = Replicas(
        client, GatewayPeers("gw_1", RedisClock(), stale_ms=1000), poll_ms=50, stale_s=60, allows=lambda _status: True
    )
    await made.refresh()
    return made


def name(number: int) -> str:
    return f"rep_{number:03}"


def encoded(number: int, **changes: object) -> bytes:
    return msgspec.json.encode(replica_status(name(number), **{"pages_total": 10, **changes}))


async def looks(replicas: Replicas) -> None:
    """As many as come in the time of one heartbeat."""
    for _ in range(4):
        await replicas.refresh()


async def test_the_first_look_finds_all(replicas):
    assert len(replicas.alive("m")) == MANY


async def test_every_change_is_seen_within_the_looks_of_one_heartbeat(client, replicas):
    await client.mset(
        {redis_keys.replica(name(number)): encoded(number, state="draining", heartbeat_ms=7) for number in range(MANY)}
    )
    await looks(replicas)
    assert {each.status.state for each in replicas.pool("m")} == {"draining"}


async def test_what_is_withdrawn_is_gone_at_the_next_look_and_what_is_new_is_there(client, replicas):
    await client.delete(redis_keys.replica(name(5)))
    await client.zrem(redis_keys.REPLICAS, name(5))
    await client.set(redis_keys.replica("rep_new"), msgspec.json.encode(replica_status("rep_new")))
    await client.zadd(redis_keys.REPLICAS, {"rep_new": 1})
    await replicas.refresh()
    ids = {each.status.id for each in replicas.pool("m")}
    assert name(5) not in ids
    assert "rep_new" in ids


async def test_a_replica_that_comes_back_with_another_base_model_is_in_one_pool(client, replicas):
    await client.set(redis_keys.replica(name(5)), encoded(5, base_model="other", heartbeat_ms=7))
    await looks(replicas)
    assert [each.status.id for each in replicas.pool("other")] == [name(5)]
    assert name(5) not in {each.status.id for each in replicas.pool("m")}


async def test_a_request_that_only_one_replica_can_hold_finds_it_although_it_is_full(client, replicas):
    """It is on no shortlist, so all are ranked before the request is refused."""
    await client.set(redis_keys.replica(name(5)), encoded(5, pages_total=50, heartbeat_ms=7))
    await client.hset(redis_keys.replica_held_pages(name(5)), "total", 50)
    await looks(replicas)
    queue = WaitQueue(
        replicas,
        COSTS,
        QueueBounds(requests_max=6, tokens_max=100_000, tenant_requests_max=5),
        WaitLimits(wait_s=5, batch_wait_s=5, overdue_after_s=1, poll_s=10),
        BacklogBounds(tenants_max=64, adapters_max=64),
    )
    large = inference_request(prompt_tokens=16, max_tokens=16 * 20, min_tokens=1)
    assert [each.status.id for each in queue.ranking(large).able] == [name(5)]
