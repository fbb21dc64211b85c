"""Drains through the API: undone, refused for the last replica that serves something, and decided one at a time."""

from concurrent.futures import ThreadPoolExecutor

import msgspec

from core import redis_keys
from tests.fixtures.control_plane.registry_rows import add_revision, beat
from tests.fixtures.uploads.peft_adapters import tiny_base

ROOT, TRAIL = "/api/v1/admin/replicas", "/api/v1/admin/audit-events"


def trail(api) -> list[tuple[str, str]]:
    rows = api.admin.get(TRAIL, params={"action": "replica"}).raise_for_status().json()["data"]
    return [(row["action"], row["target"]) for row in reversed(rows)]


def test_a_drain_is_undone_once_and_each_change_is_audited(api, redis):
    one, _ = beat(redis, "tiny"), beat(redis, "tiny")
    path = f"{ROOT}/{one.id}/drain"
    for method, requested in (("POST", True), ("POST", True), ("DELETE", False), ("DELETE", False)):
        answer = api.admin.request(method, path)
        assert (answer.status_code, answer.json()["drain_requested"]) == (202, requested), answer.text
        assert redis.exists(redis_keys.replica_drain(one.id)) == requested
    assert trail(api) == [("replica.drained", one.id), ("replica.drain_undone", one.id)]
    for method in ("POST", "DELETE"):
        absent = api.admin.request(method, f"{ROOT}/rep_gone/drain")
        assert (absent.status_code, absent.json()["code"]) == (404, "replica_not_found")


def test_the_last_ready_replica_of_a_base_model_is_drained_only_by_force(api, redis):
    last, _ = beat(redis, "tiny"), beat(redis, "another")
    path = f"{ROOT}/{last.id}/drain"
    for body in (None, {}, {"force": False}):
        refused = api.admin.post(path, json=body) if body is not None else api.admin.post(path)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_ready_replica"), refused.text
        assert '{"force": true}' in refused.json()["detail"]
    assert trail(api) == []
    assert api.admin.post(path, json={"force": "yes"}).json()["param"] == "force"
    assert api.admin.post(path, json={"forced": True}).json()["code"] == "unknown_field"
    assert api.admin.post(path, json={"force": True}).status_code == 202


def test_the_last_replica_that_loads_the_rank_of_adapters_is_drained_only_by_force(api, engine, redis):
    base = msgspec.structs.replace(tiny_base(), rank_max=16, rank_classes=(8, 16))
    api.register(base).raise_for_status()
    tenant = api.tenant()
    tenant.adapter("bot", base)
    low, high = beat(redis, base.id, rank_max=8), beat(redis, base.id, rank_max=16)
    path = f"{ROOT}/{high.id}/drain"
    assert api.admin.post(path).status_code == 202, "no adapter needs it"
    api.admin.delete(path).raise_for_status()
    add_revision(engine, tenant, "bot")
    assert "rank class 16" in api.admin.post(path).json()["detail"]
    assert api.admin.post(f"{ROOT}/{low.id}/drain").status_code == 202


def test_two_admins_cannot_drain_the_last_two_replicas_at_once(api, redis):
    paths = [f"{ROOT}/{beat(redis, 'tiny').id}/drain" for _ in range(4)]
    with ThreadPoolExecutor(len(paths)) as admins:
        answers = list(admins.map(lambda path: api.admin.post(path).status_code, paths))
    assert sorted(answers) == [202, 202, 202, 409]
