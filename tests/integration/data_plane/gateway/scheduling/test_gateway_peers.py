"""What a gateway reads of its peers and replicas in a real Redis: backlogs and heartbeats arrive, they expire, and bad
ones do no harm.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio

from core import redis_keys
from core.clock import now_ms
from data_plane.gateway.scheduling.fair_share import GatewayBacklog, PageDemand
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import PlacementCosts, PlacementQuery, rank
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.state.redis_clock import RedisClock
from tests.fixtures.gateway.requests import inference_request, replica_status


class Gateway:
    """A gateway that follows a replica; ``has`` is the backlog it publishes."""

    def __init__(self, client: redis.asyncio.Redis, name: str) -> None:
        self.has = GatewayBacklog()
        self.received: list[GatewayBacklog] = []
        self.silence = asyncio.Event()
        peers = GatewayPeers(name, RedisClock(), stale_ms=500)
        peers.connect(lambda _base_model: self.has, self._receive)
        self.replicas = Replicas(client, peers, poll_ms=50, stale_s=60, allows=lambda _status: True)

    def _receive(self, base_model: str, own: GatewayBacklog, others: list[GatewayBacklog]) -> None:
        assert base_model == "m"
        assert own == self.has
        self.received = others
        if others:
            self.silence.clear()
        else:
            self.silence.set()


@pytest.fixture
async def client(redis_settings) -> AsyncIterator[redis.asyncio.Redis]:
    """One replica, and the heartbeats of two gateways."""
    async with redis.asyncio.Redis.from_url(redis_settings.redis_url) as client:
        await client.set(redis_keys.replica("rep_1"), msgspec.json.encode(replica_status()))
        await client.zadd(redis_keys.REPLICAS, {"rep_1": 1})
        await client.zadd(redis_keys.GATEWAYS, {"gw_1": now_ms(), "gw_2": now_ms(), "gw_gone": now_ms() - 60_000})
        yield client


@pytest.fixture
async def pair(client) -> tuple[Gateway, Gateway]:
    made = Gateway(client, "gw_1"), Gateway(client, "gw_2")
    for gateway in made * 2:  # first the backlogs, then their publication
        await gateway.replicas.refresh()
    return made


async def test_each_gateway_receives_the_others_backlog_and_not_its_own(pair):
    one, other = pair
    one.has = GatewayBacklog({"tn_a": PageDemand(1, 1, 4, 8)}, {2: PageDemand(3, 2, 1, 0)}, 8, {"rep_1": ["00000001"]})
    await one.replicas.refresh_held("m")
    await other.replicas.refresh_held("m")
    assert other.received == [one.has]
    await one.replicas.refresh_held("m")
    assert one.received == [GatewayBacklog()]


async def test_a_gateway_that_stops_publishing_no_longer_counts(pair):
    one, other = pair
    one.has = GatewayBacklog({"tn_a": PageDemand(1, 1, 4, 8)})
    await one.replicas.refresh_held("m")
    await other.replicas.refresh_held("m")
    assert other.received
    await asyncio.sleep(0.6)
    await other.replicas.refresh_held("m")
    assert other.received == []


async def test_during_a_redis_outage_received_backlogs_expire_as_they_would_in_redis(client, pair, monkeypatch):
    one, other = pair
    one.has = GatewayBacklog({"tn_a": PageDemand(1, 1, 4, 8)})
    await one.replicas.refresh_held("m")
    await other.replicas.refresh_held("m")
    assert other.received == [one.has]

    async def refuse(*_arguments):
        raise redis.exceptions.ConnectionError

    monkeypatch.setattr(client, "zrange", refuse)
    following = asyncio.create_task(other.replicas.run_forever())
    async with asyncio.timeout(5):
        await other.silence.wait()
    following.cancel()
    assert other.replicas.alive("m"), "the replicas stay"


async def test_the_last_gateway_receives_no_backlog_and_stops_publishing(client, pair):
    one, other = pair
    await other.replicas.refresh_held("m")
    assert other.received == [one.has]
    await client.zrem(redis_keys.GATEWAYS, "gw_1")
    await other.replicas.refresh()
    await client.delete(redis_keys.gateway_backlog("gw_2", "m"))
    await other.replicas.refresh_held("m")
    assert other.received == []
    assert not await client.exists(redis_keys.gateway_backlog("gw_2", "m"))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"nonsense", b"[]]", b'[{"tn_a":[0,1,4,8]}]', b'{"tenants":{}}', b'[{"\xff":[1,1,4,8]}]',
        b'[{"tn_a":[1,1,1' + b"0" * 400 + b",8]}]",
    ],
)  # fmt: skip
async def test_an_unreadable_backlog_counts_as_empty(client, pair, value):
    _, other = pair
    await client.set(redis_keys.gateway_backlog("gw_1", "m"), value)
    await other.replicas.refresh_held("m")
    assert other.received == []
    assert other.replicas.alive("m"), "and the rest is still read"


async def test_names_that_are_not_text_are_ignored(client, pair):
    one, other = pair
    await client.zadd(redis_keys.GATEWAYS, {b"\xff": now_ms()})
    await client.zadd(redis_keys.REPLICAS, {b"\xfe": 1})
    await client.set(redis_keys.replica("rep_2"), b'{"id":"\xff"}')
    await client.zadd(redis_keys.REPLICAS, {"rep_2": 1})
    await other.replicas.refresh()
    await other.replicas.refresh()
    assert other.received == [one.has]
    assert [candidate.status.id for candidate in other.replicas.alive("m")] == ["rep_1"]


async def test_replicas_that_drain_or_stop_their_heartbeat_are_not_chosen(client):
    peers = GatewayPeers("gw_1", RedisClock(), stale_ms=500)
    replicas = Replicas(client, peers, poll_ms=50, stale_s=0.2, allows=lambda _status: True)
    costs = PlacementCosts(store_ms=1, disk_ms=1, slot_ms=1, prompt_token_ms=1, running_ms=1, headroom_share=0)

    async def chosen(heartbeat_ms: int, state: str = "ready") -> list[str]:
        status = replica_status(heartbeat_ms=heartbeat_ms, state=state)
        await client.set(redis_keys.replica("rep_1"), msgspec.json.encode(status))
        await replicas.refresh()
        ranking = rank(replicas.alive("m"), PlacementQuery(inference_request(), True, False, frozenset()), costs)
        return [candidate.status.id for candidate in ranking.now]

    assert await chosen(1) == ["rep_1"]
    for number, state in enumerate(("draining", "unhealthy", "starting"), start=2):
        assert await chosen(number, state) == []
    assert await chosen(5) == ["rep_1"]
    await asyncio.sleep(0.3)
    assert await chosen(5) == [], "ready, but its heartbeat has stopped"
    assert await chosen(6) == ["rep_1"]
    await client.delete(redis_keys.replica("rep_1"))
    await replicas.refresh()
    assert not replicas.pool("m")


async def test_held_pages_that_are_not_a_number_are_ignored(client, pair):
    one, _ = pair
    held = redis_keys.replica_held_pages("rep_1")
    for total, expected in ((b"7", 7), (b"many", 7), (b"2", 2)):
        await client.hset(held, "total", total)
        for refresh in (one.replicas.refresh(), one.replicas.refresh_held("m")):
            await refresh
            assert [candidate.load.held_pages for candidate in one.replicas.pool("m")] == [expected]


async def test_replicas_are_read_once_a_refresh_in_whatever_order_their_heartbeats_come(client, pair):
    one, _ = pair
    for heartbeats in ({"rep_1": 1, "rep_2": 2}, {"rep_1": 3, "rep_2": 2}):
        await client.zadd(redis_keys.REPLICAS, heartbeats)
        await one.replicas.refresh()
    before = (await client.info("commandstats"))["cmdstat_zrange"]["calls"]
    await client.zadd(redis_keys.REPLICAS, {"rep_2": 4})
    await one.replicas.refresh()
    assert (await client.info("commandstats"))["cmdstat_zrange"]["calls"] == before + 1
