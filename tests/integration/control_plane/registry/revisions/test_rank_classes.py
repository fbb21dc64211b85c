"""Rank classes through the API, and the fleet's view of a replica's tiers."""

import msgspec
import pytest

from core import redis_keys
from core.contracts.replicas import Residency
from core.contracts.routes import AdapterRoute
from tests.fixtures.control_plane.registry_rows import add_revision, beat
from tests.fixtures.uploads.peft_adapters import tiny_base


def classes_of(api, base) -> list[dict]:
    return api.admin.get(f"/api/v1/admin/base-models/{base.id}/rank-classes").raise_for_status().json()["data"]


def test_an_admin_sees_the_cost_and_content_of_each_class(api, engine, redis):
    base = msgspec.structs.replace(tiny_base(), rank_max=16, rank_classes=(8, 16))
    api.register(base).raise_for_status()
    tenant = api.tenant()
    tenant.adapter("bot", base)
    add_revision(engine, tenant, "bot")
    beat(redis, base.id, rank_max=16)
    beat(redis, "another-base", rank_max=16)
    low, high = classes_of(api, base)
    assert (low["rank"], low["replicas"], low["slots"], low["adapters"]) == (8, 0, 0, 0)
    assert (high["rank"], high["replicas"], high["slots"], high["adapters"]) == (16, 1, 4, 1)
    assert high["slot_bytes"] == 2 * low["slot_bytes"] > 0
    assert high["kv_pages_per_slot"] > low["kv_pages_per_slot"] > 0
    none = api.admin.get("/api/v1/admin/base-models/none/rank-classes")
    assert (none.status_code, none.json()["code"]) == (404, "base_model_not_found")


def test_new_classes_move_revisions_to_the_cheapest_fitting_class_and_publish_them(api, base, engine, redis, relay):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    small, large = add_revision(engine, tenant, "bot", rank=4), add_revision(engine, tenant, "bot", rank=12)
    relay.rebuild("test")
    api.register(msgspec.structs.replace(base, rank_max=64, rank_classes=(8, 16, 64))).raise_for_status()
    while relay.run_once():
        pass
    route = msgspec.json.decode(redis.hget(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), type=AdapterRoute)
    assert {id_: revision.rank_class for id_, revision in route.revisions.items()} == {small["id"]: 8, large["id"]: 16}
    seen = tenant.http.get(f"/api/v1/adapters/bot/revisions/{large['id']}").json()
    assert (seen["rank"], seen["rank_class"]) == (12, 16)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"rank_max": 0}, "rank_max"),
        ({"rank_max": 513}, "rank_max"),
        ({"rank_max": 16, "rank_classes": (8,)}, "rank_max"),
        ({"rank_max": 16, "rank_classes": (16, 8)}, "rank_classes"),
        ({"rank_max": 16, "rank_classes": (0, 16)}, "rank_classes[0]"),
        ({"rank_max": 16, "rank_classes": (16, 16)}, "rank_classes"),
        ({"rank_max": 17, "rank_classes": tuple(range(1, 18))}, "rank_classes"),
    ],
)
def test_invalid_classes_are_refused(shared_api, change, param):
    response = shared_api.register(msgspec.structs.replace(tiny_base(), **change))
    assert (response.status_code, response.json()["param"]) == (400, param), response.text


def test_an_admin_sees_the_tiers_of_adapters_on_a_replica(api, redis):
    replica = beat(redis, "tiny", rank_max=32, memory_adapters=5, residency_version=3)
    (shown,) = api.admin.get("/api/v1/admin/replicas").json()["data"]
    assert (shown["rank_max"], shown["memory_adapters"], shown["residency_version"]) == (32, 5, 3)
    path = f"/api/v1/admin/replicas/{replica.id}/residency"
    missing = api.admin.get(path)
    assert (missing.status_code, missing.json()["code"]) == (404, "replica_not_found")
    lies = Residency(
        replica_id=replica.id, boot_id=replica.boot_id, version=3, slots=("a@1", None), memory=("a@1",), disk=("1",)
    )
    redis.set(redis_keys.replica_residency(replica.id), msgspec.json.encode(lies))
    assert api.admin.get(path).json() == {
        "replica": replica.id,
        "boot_id": replica.boot_id,
        "version": 3,
        "slots": ["a@1", None],
        "memory": ["a@1"],
        "disk": ["1"],
    }
