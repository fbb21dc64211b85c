"""From a committed change to Redis: once or twice, late, out of order, in a race or by a rebuild, the snapshot is
the same.
"""

import secrets
import threading

import msgspec
import pytest
from redis import Redis
from sqlmodel import Session, select

from control_plane.publishing import outbox, outbox_relay, snapshot_store
from control_plane.publishing.models import OutboxChange
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.publishing.projection import Projection, published
from control_plane.publishing.snapshot_store import KINDS, PublishConflict
from core import db, redis_keys
from core.api_keys import hash_key
from core.contracts.grants import KeyGrant, TenantGrant
from core.contracts.routes import BaseModelRoute
from core.contracts.snapshots import SnapshotChange
from core.snapshot_signing import SetHash, SnapshotVerifier, check_digest, read_root
from tests.fixtures.control_plane.api import LIMITS, PEPPER
from tests.fixtures.snapshot_keys import PUBLIC_KEYS, SIGNER


def drain(relay: OutboxRelay) -> None:
    while relay.run_once():
        pass


def content(redis: Redis) -> dict:
    return {kind: redis.hgetall(redis_keys.snapshot(kind)) for kind in KINDS}


def changes(redis: Redis) -> list[SnapshotChange]:
    return [
        msgspec.json.decode(entry[b"change"], type=SnapshotChange)
        for _, entry in redis.xrange(redis_keys.SNAPSHOT_CHANGES)
    ]


def generation(redis: Redis) -> int:
    return int(redis.hget(redis_keys.SNAPSHOT_META, "generation"))


def followed(redis: Redis) -> dict:
    """The state of a gateway that started empty and followed the stream within the newest epoch."""
    epoch = redis.hget(redis_keys.SNAPSHOT_META, "epoch").decode()
    held, last = {kind: {} for kind in KINDS}, None
    for change in changes(redis):
        if change.epoch != epoch:
            continue
        assert last is None or change.generation == last + 1, "a gap"
        last = change.generation
        if change.value is None:
            held[change.kind].pop(change.field.encode(), None)
        else:
            held[change.kind][change.field.encode()] = change.value.encode()
    assert last == generation(redis)
    return held


def test_changes_committed_by_the_api_reach_the_snapshot(api, base, relay, redis):
    drain(relay)
    tenant = api.tenant()
    drain(relay)
    grant = msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant.id), type=TenantGrant)
    assert (grant.status, msgspec.json.decode(msgspec.json.encode(grant.limits))) == ("active", LIMITS)
    field = hash_key(tenant.key, PEPPER.encode())
    key = msgspec.json.decode(redis.hget(redis_keys.snapshot("keys"), field), type=KeyGrant)
    assert (key.key_id, key.tenant_id, "inference" in key.scopes) == (tenant.key_id, tenant.id, True)
    assert redis.hkeys(redis_keys.snapshot("keys")) == [field.encode()], "an admin's key never reaches the gateways"
    route = msgspec.json.decode(redis.hget(redis_keys.snapshot("base_models"), base.id), type=BaseModelRoute)
    assert redis.get(redis_keys.blob(route.tokenizer_sha256)).decode() == base.tokenizer_json
    assert route.chat_template == base.chat_template
    assert redis.hgetall(redis_keys.snapshot("adapters")) == {}, "an adapter without a ready revision is not routed"
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended", "limits": {"kv_pages": 16}})
    tenant.http.delete(f"/api/v1/api-keys/{tenant.key_id}")
    drain(relay)
    grant = msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant.id), type=TenantGrant)
    assert (grant.status, grant.limits.kv_pages) == ("suspended", 16)


def test_following_the_stream_gives_the_same_snapshot_as_a_rebuild(api, base, relay, redis):
    drain(relay)
    for _ in range(3):
        tenant = api.tenant()
        api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"adapters": 2}})
        drain(relay)
        tenant.http.delete(f"/api/v1/api-keys/{tenant.http.post('/api/v1/api-keys', json={}).json()['id']}")
    drain(relay)
    api.register(msgspec.structs.replace(base, id="second", hub_name="x/second")).raise_for_status()
    drain(relay)
    incremental = content(redis)
    held = followed(redis)
    assert {kind: held[kind] for kind in ("keys", "tenants")} == {
        kind: incremental[kind] for kind in ("keys", "tenants")
    }
    epoch = redis.hget(redis_keys.SNAPSHOT_META, "epoch")
    relay.rebuild("asked")
    assert content(redis) == incremental
    assert redis.hget(redis_keys.SNAPSHOT_META, "epoch") != epoch
    last = changes(redis)[-1]
    assert (last.epoch.encode(), last.generation) == (redis.hget(redis_keys.SNAPSHOT_META, "epoch"), 1)
    assert all(redis.ttl(redis_keys.snapshot(kind)) == -1 for kind in KINDS if redis.exists(redis_keys.snapshot(kind)))


def test_a_relay_that_dies_after_publishing_publishes_again_with_the_same_result(
    api, relay, redis, engine, monkeypatch
):
    drain(relay)
    tenant = api.tenant()

    class Died(Exception):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(relay, "_record_published", die)
        with pytest.raises(Died):
            relay.run_once()
    before, at = content(redis), generation(redis)
    assert tenant.id.encode() in before["tenants"]
    drain(relay)
    assert content(redis) == before
    assert generation(redis) > at
    with Session(engine) as session:
        assert session.exec(select(OutboxChange)).all() == []


def test_a_change_that_commits_late_is_not_skipped(api, relay, redis, engine):
    first, second = api.tenant(), api.tenant()
    drain(relay)
    with Session(engine) as slow:
        outbox.publish_change(slow, "tenants", first.id)
        slow.flush()  # it has the lower id and is not committed yet
        with db.unit_of_work(engine) as session:
            outbox.publish_change(session, "tenants", second.id)
        at = generation(redis)
        drain(relay)
        assert [change.field for change in changes(redis)][-1] == second.id
        slow.commit()
    drain(relay)
    assert [change.field for change in changes(redis)][-1] == first.id
    assert generation(redis) == at + 2


def test_two_relays_racing_publish_each_change_in_order_without_a_gap(api, engine, redis_settings, redis):
    tenants = [api.tenant() for _ in range(3)]
    drain(OutboxRelay(engine, redis, _projections(), SIGNER))
    stop = threading.Event()

    def race():
        with Redis.from_url(redis_settings.redis_url) as client:
            relay = OutboxRelay(engine, client, _projections(), SIGNER, batch_max=2)
            while not stop.is_set():
                relay.run_once()

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for pages in range(1, 11):
        for tenant in tenants:
            body = {"limits": {"kv_pages": pages}}
            api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json=body).raise_for_status()
    stop.set()
    for thread in threads:
        thread.join()
    drain(OutboxRelay(engine, redis, _projections(), SIGNER))
    held = followed(redis)["tenants"]
    assert held == redis.hgetall(redis_keys.snapshot("tenants"))
    assert {msgspec.json.decode(value, type=TenantGrant).limits.kv_pages for value in held.values()} == {10}


def test_a_stale_relay_cannot_overwrite_a_newer_change(relay, redis):
    drain(relay)
    change = snapshot_store.Change(kind="tenants", field="tn_1", published=published(None))

    def publish_late():
        with snapshot_store.watched(redis) as pipe:
            stored = snapshot_store.read_stored(pipe, SnapshotVerifier(PUBLIC_KEYS))
            redis.hincrby(redis_keys.SNAPSHOT_META, "generation", 1)
            snapshot_store.append(pipe, stored, [change], SIGNER, 0)

    with pytest.raises(PublishConflict):
        publish_late()
    assert generation(redis) == 2


def test_a_redis_that_lost_everything_or_the_last_second_is_rebuilt(api, relay, redis):
    tenant = api.tenant()
    drain(relay)
    whole = content(redis)
    redis.flushall()
    assert relay.run_once()
    assert content(redis) == whole
    kept, position = content(redis), redis.hgetall(redis_keys.SNAPSHOT_META)
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"kv_pages": 3}})
    drain(relay)
    redis.hset(redis_keys.snapshot("tenants"), mapping=kept["tenants"])  # an append-only file that lost its last second
    redis.hset(redis_keys.SNAPSHOT_META, mapping=position)
    drain(relay)
    grant = msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant.id), type=TenantGrant)
    assert grant.limits.kv_pages == 3


def test_lost_data_is_noticed_without_a_change_of_the_database(api, relay, redis):
    api.tenant()
    drain(relay)
    whole = content(redis)
    assert not relay.check_redis()
    assert content(redis) == whole
    redis.flushall()
    assert relay.check_redis()
    assert content(redis) == whole


@pytest.mark.parametrize(
    "written", [{"root": b"{}"}, {"root_signature": b"x" * 64}, {"generation": 99}, {"set_hash:keys": b"x" * 2048}]
)
def test_a_position_that_is_not_signed_is_replaced_by_the_whole(api, relay, redis, written):
    api.tenant()
    drain(relay)
    whole, epoch = content(redis), redis.hget(redis_keys.SNAPSHOT_META, "epoch")
    redis.hset(redis_keys.SNAPSHOT_META, mapping=written)
    assert relay.run_once()
    assert content(redis) == whole
    assert redis.hget(redis_keys.SNAPSHOT_META, "epoch") != epoch


def test_what_is_published_has_the_signed_digests(api, relay, redis):
    tenant = api.tenant()
    for kv_pages in (3, 4):
        api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"kv_pages": kv_pages}})
        drain(relay)
    tenant.http.delete(f"/api/v1/api-keys/{tenant.key_id}").raise_for_status()
    drain(relay)
    root_bytes, signature = redis.hmget(redis_keys.SNAPSHOT_META, ["root", "root_signature"])
    root = read_root(SnapshotVerifier(PUBLIC_KEYS), root_bytes, signature)
    for kind, entries in content(redis).items():
        found = SetHash()
        for field, value in entries.items():
            found.add(field.decode(), value)
        check_digest(root, kind, found)


def test_a_rebuild_is_never_seen_half_done(engine, redis, redis_settings):
    """A reader of a whole hash sees all old or all new fields, even during a slow rebuild."""
    version = {"now": 0}

    def every(_session):
        for number in range(1000):
            yield f"tn_{number}", published(KeyGrant(key_id=str(version["now"]), tenant_id="t", scopes=()))

    nothing = Projection(some=lambda *_: {}, every=lambda _: iter(()))
    projections = dict.fromkeys(KINDS, nothing) | {"tenants": Projection(some=nothing.some, every=every)}
    relay = OutboxRelay(engine, redis, projections, SIGNER)
    relay.rebuild("asked")
    stop, torn = threading.Event(), []

    def read():
        with Redis.from_url(redis_settings.redis_url) as client:
            while not stop.is_set():
                values = client.hvals(redis_keys.snapshot("tenants"))
                if len(values) != 1000 or len(set(values)) != 1:
                    torn.append(len(values))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3):
        version["now"] += 1
        relay.rebuild("asked")
    stop.set()
    reader.join()
    assert torn == []
    assert not redis.keys("tenora:snapshot:tenants:*"), "nothing staged is left"


def test_a_rebuild_waits_for_a_running_relay_until_a_timeout(engine, redis):
    from core.errors import Unavailable

    with db.exclusively(engine, outbox_relay._ADVISORY_LOCK) as held:
        assert held
        with pytest.raises(Unavailable, match="publishing"):
            OutboxRelay(engine, redis, _projections(), SIGNER).rebuild("asked", wait_s=0.2)
        assert not OutboxRelay(engine, redis, _projections(), SIGNER).run_once()


def test_a_rolled_back_change_is_never_published(engine, redis, relay):
    drain(relay)
    at = generation(redis)

    def change_and_fail():
        with db.unit_of_work(engine) as session:
            outbox.publish_change(session, "tenants", f"tn_{secrets.token_hex(4)}")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_fail()
    drain(relay)
    assert generation(redis) == at


def _projections():
    from control_plane.projections import projections

    return projections()
