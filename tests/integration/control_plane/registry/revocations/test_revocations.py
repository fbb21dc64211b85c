"""Deleting an adapter and suspending a tenant: the route ends, every live replica is awaited, receipts are shown."""

import msgspec
import pytest

from control_plane.registry.revocations.receipts import ReceiptCollector
from core import redis_keys
from core.contracts.revocations import Revocation
from tests.fixtures.control_plane.registry_rows import add_revision, answer, beat, impatient


@pytest.fixture
def collector(engine, redis) -> ReceiptCollector:
    return ReceiptCollector(engine, redis, impatient())


def drain(relay) -> None:
    while relay.run_once():
        pass


def published(redis) -> dict[str, Revocation]:
    """The published revocations, by id."""
    stored = redis.hgetall(redis_keys.snapshot("revocations"))
    return {field.decode(): msgspec.json.decode(value, type=Revocation) for field, value in stored.items()}


def routed(redis) -> set[str]:
    return {field.decode() for field in redis.hkeys(redis_keys.snapshot("adapters"))}


def deleted(tenant, name: str) -> dict:
    response = tenant.http.delete(f"/api/v1/adapters/{name}")
    assert response.status_code == 202, response.text
    return response.json()


def shown(tenant, revocation: dict) -> dict:
    return tenant.http.get(f"/api/v1/revocations/{revocation['id']}").raise_for_status().json()


def test_a_deleted_adapter_loses_its_route_and_all_its_names_are_revoked(api, base, engine, relay, redis):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    ready = [add_revision(engine, tenant, "bot") for _ in range(2)]
    checked = add_revision(engine, tenant, "bot", ready=False)
    drain(relay)
    relay.rebuild("test")
    assert routed(redis) == {f"{tenant.id}/bot"}
    revocation = deleted(tenant, "bot")
    assert (revocation["state"], revocation["reason"], revocation["awaited_replicas"]) == ("stopping", "deleted", None)
    drain(relay)
    names = {each["engine_name"] for each in (*ready, checked)}
    assert routed(redis) == set()
    assert {revocation["id"]: names} == {id_: set(each.engine_names) for id_, each in published(redis).items()}
    assert published(redis)[revocation["id"]].base_model == base.id
    path = f"/api/v1/adapters/bot/revisions/{checked['id']}"
    assert tenant.http.get(path).status_code == 404
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    relay.rebuild("test")
    assert routed(redis) == {f"{tenant.id}/bot"}, "the name is free for a new adapter, which is not revoked"
    assert set(published(redis)) == {revocation["id"]}


def test_a_revision_in_progress_is_rejected_when_its_adapter_is_deleted(api, base, engine):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    revision = add_revision(engine, tenant, "bot", ready=False)
    deleted(tenant, "bot")
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT status, report FROM revisions WHERE id = %s", (revision["id"],)).one()
    assert (row.status, row.report["problems"][0]["code"]) == ("rejected", "adapter_deleted")
    assert row.report["notes"] == ["a note"]


def test_an_adapter_without_revisions_is_removed_at_once(api, base, relay, redis):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    revocation = deleted(tenant, "bot")
    assert (revocation["state"], revocation["engine_names"]) == ("removed", [])
    drain(relay)
    assert published(redis) == {}


def test_an_adapter_is_unloaded_only_after_every_live_replica_of_its_base_confirms(api, base, engine, redis, collector):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    name = add_revision(engine, tenant, "bot")["engine_name"]
    one, two = beat(redis, base.id), beat(redis, base.id)
    beat(redis, "another-base")
    revocation = deleted(tenant, "bot")
    assert shown(tenant, revocation)["awaited_replicas"] == sorted([one.id, two.id])
    answer(redis, revocation["id"], one, drained_requests=2)
    answer(redis, revocation["id"], two, state="draining", in_slots=(name,))
    collector.run_once()
    now = shown(tenant, revocation)
    assert (now["state"], now["unloaded_at"], now["awaited_replicas"]) == ("draining", None, [two.id])
    receipts = {receipt["replica"]: receipt for receipt in now["receipts"]}
    assert (receipts[one.id]["state"], receipts[one.id]["drained_requests"]) == ("removed", 2)
    assert (receipts[two.id]["state"], receipts[two.id]["in_slots"]) == ("draining", [name])
    answer(redis, revocation["id"], two, after_s=1, aborted_requests=1)
    collector.run_once()
    now = shown(tenant, revocation)
    assert (now["state"], now["awaited_replicas"]) == ("quarantined", [])
    assert now["unloaded_at"]


def test_a_tenant_does_not_learn_that_another_tenant_has_the_same_weights(api, base, engine, redis, collector):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    digest = add_revision(engine, tenant, "bot")["digest"]
    replica = beat(redis, base.id)
    revocation = deleted(tenant, "bot")
    answer(redis, revocation["id"], replica, on_disk=(digest,))
    collector.run_once()
    assert [receipt["on_disk"] for receipt in shown(tenant, revocation)["receipts"]] == [[]]
    whole = api.admin.get(f"/api/v1/admin/revocations/{revocation['id']}").json()
    assert [receipt["on_disk"] for receipt in whole["receipts"]] == [[digest]]


def test_a_redis_that_lost_its_data_completes_no_revocation(api, base, engine, redis, relay):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    relay.rebuild("test")
    replica = beat(redis, base.id)
    patient = ReceiptCollector(engine, redis, impatient(revocation_settle_s=60))
    assert patient.run_once() is False, "nothing is awaited"
    revocation = deleted(tenant, "bot")
    assert patient.run_once() == impatient().revocation_poll_ms / 1000, "until its receipts are there"
    redis.flushall()
    patient.run_once()
    assert shown(tenant, revocation)["unloaded_at"] is None, "no replica counts as alive because Redis knows none"
    beat(redis, base.id, replica_id=replica.id, boot_id=replica.boot_id)
    patient.run_once()
    assert shown(tenant, revocation)["awaited_replicas"] == [replica.id]
    drain(relay)
    assert set(published(redis)) == {revocation["id"]}, "the revocation is published again"


def test_collected_receipts_survive_data_loss_in_redis(api, base, engine, redis, collector):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    replica = beat(redis, base.id)
    other = beat(redis, base.id)
    revocation = deleted(tenant, "bot")
    answer(redis, revocation["id"], replica)
    collector.run_once()
    redis.flushall()
    for status in (replica, other):
        beat(redis, base.id, replica_id=status.id, boot_id=status.boot_id)
    collector.run_once()
    assert shown(tenant, revocation)["awaited_replicas"] == [other.id]


def test_a_revocation_is_published_for_its_retention_and_then_removed(api, base, engine, redis, relay, collector):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    revocation = deleted(tenant, "bot")
    collector.run_once()
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE adapter_revocations SET removed_at = now()")
    collector.recheck_unloaded()
    relay.rebuild("test")
    assert set(published(redis)) == {revocation["id"]}, "returning replicas must receive it"
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE adapter_revocations SET created_at = created_at - interval '8 days'")
    collector.recheck_unloaded()
    drain(relay)
    assert published(redis) == {}
    assert shown(tenant, revocation)["state"] == "removed"


def test_a_suspended_tenant_is_not_served_and_is_restored_completely(api, base, engine, redis, relay, collector):
    tenant, other = api.tenant(), api.tenant()
    for each in (tenant, other):
        each.adapter("bot", base)
        add_revision(engine, each, "bot")
    tenant.adapter("empty", base)
    relay.rebuild("test")
    path = f"/api/v1/admin/tenants/{tenant.id}"
    for _ in range(2):
        api.admin.patch(path, json={"status": "suspended"}).raise_for_status()
    drain(relay)
    assert routed(redis) == {f"{other.id}/bot"}
    ours = tenant.http.get("/api/v1/revocations").json()["data"]
    assert {(each["adapter"], each["reason"], each["state"]) for each in ours} == {
        ("bot", "suspended", "stopping"),
        ("empty", "suspended", "unloaded"),
    }
    assert len(published(redis)) == 1
    collector.run_once()
    relay.rebuild("test")
    assert (len(published(redis)), routed(redis)) == (1, {f"{other.id}/bot"}), "published while it lasts"
    for _ in range(2):
        api.admin.patch(path, json={"status": "active"}).raise_for_status()
    drain(relay)
    assert (published(redis), routed(redis)) == ({}, {f"{other.id}/bot", f"{tenant.id}/bot"})
    ours = tenant.http.get("/api/v1/revocations").json()["data"]
    assert {each["state"] for each in ours} == {"lifted"}


def test_a_deleted_adapter_stays_deleted_when_its_tenant_is_restored(api, base, engine, redis, relay):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    revocation = deleted(tenant, "bot")
    for status in ("suspended", "active"):
        api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": status}).raise_for_status()
    drain(relay)
    assert (set(published(redis)), routed(redis)) == ({revocation["id"]}, set())
