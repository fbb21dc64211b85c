"""The heartbeat's promise: once every status shows a published change, no gateway uses an older snapshot."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.snapshots import GatewayStatus
from core.errors import Unavailable
from core.newest_published import NewestPublished
from core.snapshot_signing import SnapshotVerifier
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.snapshot import Snapshot
from tests.conftest import wait_until
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

PEPPER = "pepper-of-the-tests"


@pytest.fixture
async def line(redis_settings):
    async with Redis.from_url(redis_settings.redis_url) as client:
        yield client


@pytest.fixture
def publisher(redis) -> Publisher:
    made = Publisher(redis, PEPPER)
    made.tenant()
    return made


def heartbeat_of(
    line: Redis, snapshot: Snapshot, lease_s: float = 5, period_s: float = 1, clock: RedisClock | None = None
) -> Heartbeat:
    return Heartbeat(line, snapshot, clock or RedisClock(), "gw_1", period_s=period_s, lease_s=lease_s)


async def until(condition) -> None:
    """Within a third of the longest period here, even on a busy machine."""
    await asyncio.to_thread(wait_until, condition, timeout_s=20)


def status(redis) -> GatewayStatus:
    return msgspec.json.decode(redis.get(redis_keys.gateway("gw_1")), type=GatewayStatus)


def snapshot_of(line: Redis) -> Snapshot:
    newest = NewestPublished(Path("/dev/null/never-written"))
    return Snapshot(line, SnapshotVerifier(PUBLIC_KEYS), newest, block_ms=50, batch_max=100)


async def test_a_gateway_serves_only_between_its_first_and_last_heartbeat(line, redis, publisher):
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot)
    await snapshot.load()
    with pytest.raises(Unavailable) as refused:
        heartbeat.require_current()
    assert (refused.value.code, refused.value.retry_after_s) == ("gateway_behind", 1)
    await heartbeat.write()
    heartbeat.require_current()
    assert (status(redis).epoch, status(redis).generation) == (publisher.epoch, publisher.generation)
    assert 4000 < redis.pttl(redis_keys.gateway("gw_1")) <= 5000
    await heartbeat.stop()
    assert not heartbeat.current
    assert (redis.exists(redis_keys.gateway("gw_1")), redis.zcard(redis_keys.GATEWAYS)) == (0, 0)


async def test_a_heartbeat_reads_the_redis_time(line, redis, publisher):
    snapshot = snapshot_of(line)
    await snapshot.load()
    clock = RedisClock()
    clock.synchronize(1_000_000_000, 0)  # in 2001
    heartbeat = heartbeat_of(line, snapshot, clock=clock)
    await heartbeat.write()
    seconds, microseconds = redis.time()
    assert abs(seconds * 1000 + microseconds // 1000 - clock.now_ms()) < 1000
    await heartbeat.write()
    assert abs(status(redis).heartbeat_ms - seconds * 1000) < 5000


async def test_a_gateway_without_a_status_serves_again_only_with_the_latest_snapshot(line, redis, publisher):
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot)
    await snapshot.load()
    publisher.tenant()  # after the load; no publisher has waited for this process, which had no status
    await heartbeat.write()
    assert status(redis).generation == publisher.generation - 1
    assert not heartbeat.current
    await snapshot.load()
    await heartbeat.write()
    heartbeat.require_current()


async def test_a_gateway_with_a_status_keeps_serving_while_it_catches_up(line, redis, publisher):
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot)
    await snapshot.load()
    await heartbeat.write()
    publisher.tenant()  # a publisher that waits for this change sees that this process does not have it
    await heartbeat.write()
    heartbeat.require_current()
    assert status(redis).generation == publisher.generation - 1


async def test_serving_ends_no_later_than_the_status_expires(line, redis, publisher):
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot, lease_s=0.3)
    await snapshot.load()
    await heartbeat.write()
    await until(lambda: not redis.exists(redis_keys.gateway("gw_1")))
    assert not heartbeat.current


async def test_a_heartbeat_longer_than_the_lease_counts_as_a_lapse(line, redis, publisher):
    """The old status expires while Redis stalls, so no publisher waits for this process, which does not have the
    change.
    """
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot, lease_s=4)
    await snapshot.load()
    ends = time.monotonic() + 4
    await heartbeat.write()
    publisher.tenant()
    await asyncio.sleep(ends - time.monotonic() - 0.5)
    redis.client_pause(1000)
    await heartbeat.write()
    assert status(redis).generation == publisher.generation - 1
    assert not heartbeat.current
    await snapshot.load()
    await heartbeat.write()
    heartbeat.require_current()


async def test_an_applied_change_is_published_at_once(line, redis, publisher):
    snapshot = snapshot_of(line)
    heartbeat = heartbeat_of(line, snapshot, lease_s=60, period_s=60)
    await snapshot.load()
    tasks = [asyncio.create_task(snapshot.run_forever()), asyncio.create_task(heartbeat.run_forever())]
    try:
        for _ in range(5):
            publisher.tenant()
            await until(
                lambda: redis.exists(redis_keys.gateway("gw_1")) and status(redis).generation == publisher.generation
            )
        publisher.rebuild()
        publisher.tenant()
        await until(lambda: status(redis).epoch == publisher.epoch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_redis_that_hangs_costs_one_beat_and_not_the_lease(line, redis, publisher):
    callers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _reader, writer: callers.append(writer), "127.0.0.1", 0)
    snapshot = snapshot_of(line)
    await snapshot.load()
    try:
        async with Redis.from_url(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}") as unresponsive:
            heartbeat = heartbeat_of(unresponsive, snapshot, lease_s=0.4)
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await heartbeat.write()
            assert 0.2 <= time.monotonic() - began < 10
            assert not heartbeat.current
    finally:
        silent.close()
        for caller in callers:
            caller.close()
            await caller.wait_closed()
