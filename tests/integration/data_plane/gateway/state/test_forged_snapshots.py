"""A gateway acts only by what the control plane signed, whatever somebody writes into Redis."""

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.grants import KeyGrant
from core.newest_published import NewestPublished
from core.snapshot_signing import ForgedSnapshot, SetHash, SnapshotVerifier
from data_plane.gateway.state.snapshot import Snapshot
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

PEPPER = "pepper-of-the-tests"
FORGED = msgspec.json.encode(KeyGrant(key_id="key_x", tenant_id="tn_victim", scopes=("inference",), limits=None))


@pytest.fixture
async def line(redis_settings):
    async with Redis.from_url(redis_settings.redis_url) as client:
        yield client


@pytest.fixture
def publisher(redis) -> Publisher:
    return Publisher(redis, PEPPER)


@pytest.fixture
def snapshot_of(line, tmp_path):
    def made() -> Snapshot:
        newest = NewestPublished(tmp_path / "newest-snapshot")
        return Snapshot(line, SnapshotVerifier(PUBLIC_KEYS), newest, block_ms=50, batch_max=100)

    return made


def contents(redis) -> dict[bytes, bytes]:
    """Dumps of everything that is published."""
    return {key: redis.dump(key) for key in redis.keys("tenora:snapshot*")}


def write_back(redis, dumps: dict[bytes, bytes]) -> None:
    for key in redis.keys("tenora:snapshot*"):
        redis.delete(key)
    for key, dump in dumps.items():
        redis.restore(key, 0, dump)


async def test_a_key_that_somebody_adds_or_alters_is_never_loaded(redis, publisher, snapshot_of):
    key = publisher.key(publisher.tenant())
    hashed, snapshot = publisher.hashed(key), snapshot_of()
    assert await snapshot.load()
    for field in ("made-up", hashed):
        before = redis.hget(redis_keys.snapshot("keys"), field)
        redis.hset(redis_keys.snapshot("keys"), field, FORGED)
        with pytest.raises(ForgedSnapshot):
            await snapshot_of().load()
        with pytest.raises(ForgedSnapshot):
            await snapshot.load()
        assert snapshot.tables.keys[hashed].tenant_id != "tn_victim"
        if before is None:
            redis.hdel(redis_keys.snapshot("keys"), field)
        else:
            redis.hset(redis_keys.snapshot("keys"), field, before)
    assert await snapshot_of().load()


async def test_kinds_of_a_newer_control_plane_are_passed_over(redis, publisher, snapshot_of):
    publisher.hashes["newer"] = SetHash()
    publisher.put("newer", "one", msgspec.json.decode(FORGED, type=KeyGrant))
    snapshot = snapshot_of()
    assert await snapshot.load()
    publisher.put("newer", "two", None)
    tenant = publisher.tenant()
    await snapshot._run_once()
    assert snapshot.generation == publisher.generation
    assert tenant in snapshot.tables.tenants


async def test_a_removed_entry_is_noticed(redis, publisher, snapshot_of):
    publisher.tenant(status="suspended")
    redis.delete(redis_keys.snapshot("tenants"))
    with pytest.raises(ForgedSnapshot):
        await snapshot_of().load()


async def test_an_entry_under_another_kind_or_a_changed_root_is_refused(redis, publisher, snapshot_of):
    publisher.tenant()
    kept = contents(redis)
    redis.rename(redis_keys.snapshot("tenants"), redis_keys.snapshot("keys"))
    with pytest.raises(ForgedSnapshot):
        await snapshot_of().load()
    write_back(redis, kept)
    root = redis.hget(redis_keys.SNAPSHOT_META, "root")
    redis.hset(redis_keys.SNAPSHOT_META, "root", root.replace(b'"generation":1', b'"generation":9'))
    with pytest.raises(ForgedSnapshot):
        await snapshot_of().load()


async def test_a_change_without_a_valid_signature_is_never_applied(redis, publisher, snapshot_of):
    key = publisher.key(publisher.tenant())
    snapshot = snapshot_of()
    await snapshot.load()
    publisher.revoke(key)
    ((entry_id, entry),) = redis.xrevrange(redis_keys.SNAPSHOT_CHANGES, count=1)
    assert entry[b"signature"]
    redis.xdel(redis_keys.SNAPSHOT_CHANGES, entry_id)
    altered = entry[b"change"].replace(publisher.hashed(key).encode(), b"another")
    redis.xadd(redis_keys.SNAPSHOT_CHANGES, {"change": altered, "signature": entry[b"signature"]})
    generation = snapshot.generation
    with pytest.raises(ForgedSnapshot):
        await snapshot._run_once()
    assert snapshot.generation == generation
    assert await snapshot.load(), "what is published is intact"
    assert publisher.hashed(key) not in snapshot.tables.keys


async def test_a_replayed_change_does_not_revive_a_revoked_key(redis, publisher, snapshot_of):
    tenant = publisher.tenant()
    snapshot = snapshot_of()
    await snapshot.load()
    key = publisher.key(tenant)
    _, created = redis.xrevrange(redis_keys.SNAPSHOT_CHANGES, count=1)[0]
    publisher.revoke(key)
    await snapshot._run_once()
    assert publisher.hashed(key) not in snapshot.tables.keys
    redis.xadd(redis_keys.SNAPSHOT_CHANGES, created)
    await snapshot._run_once()
    assert publisher.hashed(key) not in snapshot.tables.keys


async def test_a_snapshot_from_before_a_revocation_is_refused_after_a_restart(redis, publisher, snapshot_of):
    key = publisher.key(publisher.tenant())
    before = contents(redis)
    publisher.revoke(key)
    await snapshot_of().load()
    write_back(redis, before)
    with pytest.raises(ForgedSnapshot, match="older"):
        await snapshot_of().load()


async def test_a_gateway_keeps_its_tables_while_redis_has_forged_ones(redis, publisher, snapshot_of):
    key = publisher.key(publisher.tenant())
    snapshot = snapshot_of()
    task = asyncio.create_task(snapshot.run_forever())
    await snapshot.advanced.wait()
    redis.hset(redis_keys.snapshot("keys"), "made-up", FORGED)
    redis.hincrby(redis_keys.SNAPSHOT_META, "generation", 1)  # makes it load everything again
    snapshot.advanced.clear()
    async with asyncio.timeout(60):
        redis.hdel(redis_keys.snapshot("keys"), "made-up")
        publisher.tenant()  # signs a new root
        while len(snapshot.tables.tenants) < 2:
            assert "made-up" not in snapshot.tables.keys
            await snapshot.advanced.wait()
            snapshot.advanced.clear()
    assert publisher.hashed(key) in snapshot.tables.keys
    while not task.done():  # redis-py may swallow a cancellation
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
