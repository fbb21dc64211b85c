"""Cordons through the API: rows that are published, audited and lifted, and refused for the last replicas."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from control_plane.fleet import drains
from control_plane.projections import projections
from core import redis_keys
from core.db import unit_of_work
from tests.conftest import wait_until
from tests.fixtures.control_plane.registry_rows import beat

ROOT, TRAIL = "/api/v1/admin/cordons", "/api/v1/admin/audit-events"


def published(engine) -> dict[str, str]:
    with unit_of_work(engine) as session:
        return {
            field: msgspec.json.decode(each.value)["reason"] for field, each in projections()["cordons"].every(session)
        }


def test_a_cordon_is_a_row_that_is_published_changed_lifted_and_audited(api, engine, redis):
    path = f"{ROOT}/node/gpu-7"
    for reason in ("memory errors", "a new kernel"):
        made = api.admin.put(path, json={"reason": reason})
        assert (made.status_code, made.json()["reason"]) == (200, reason), made.text
        assert published(engine) == {"node/gpu-7": reason}
    assert [each["name"] for each in api.admin.get(ROOT).json()["data"]] == ["gpu-7"]
    assert api.admin.delete(path).status_code == 200
    assert (published(engine), api.admin.get(ROOT).json()["data"]) == ({}, [])
    absent = api.admin.delete(path)
    assert (absent.status_code, absent.json()["code"]) == (404, "cordon_not_found")
    trail = api.admin.get(TRAIL, params={"action": "cordon"}).json()["data"]
    assert [(row["action"], row["target"]) for row in reversed(trail)] == [
        ("cordon.put", "node/gpu-7"), ("cordon.put", "node/gpu-7"), ("cordon.lifted", "node/gpu-7"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("rack/gpu-7", {"reason": "x"}, 400, "kind"),
        ("node/-", {"reason": "x"}, 400, "target"),
        ("node/gpu-7%0A", {"reason": "x"}, 400, "target"),
        ("node/gpu-7", {}, 400, "reason"),
        ("node/gpu-7", {"reason": ""}, 400, "reason"),
        ("node/gpu-7", {"reason": "x\0"}, 400, "reason"),
        ("node/gpu-7", {"reason": "x", "why": "y"}, 400, "why"),
    ],
)
def test_a_malformed_cordon_is_refused_by_its_field(api, path, body, status, param):
    refused = api.admin.put(f"{ROOT}/{path}", json=body)
    assert (refused.status_code, refused.json()["param"]) == (status, param), refused.text
    assert api.admin.get(ROOT).json()["data"] == []


def test_the_node_of_the_last_ready_replicas_is_cordoned_only_by_force(api, engine, redis):
    for _ in range(2):
        beat(redis, "tiny", node="gpu-7")
    refused = api.admin.put(f"{ROOT}/node/gpu-7", json={"reason": "x"})
    assert (refused.status_code, refused.json()["code"]) == (409, "last_ready_replica"), refused.text
    assert published(engine) == {}
    other = beat(redis, "tiny", node="gpu-8")
    assert api.admin.put(f"{ROOT}/node/gpu-7", json={"reason": "x"}).status_code == 200
    redis.delete(redis_keys.replica(other.id))
    assert api.admin.put(f"{ROOT}/node/gpu-7", json={"reason": "y"}).status_code == 200, "it takes nothing more away"
    beat(redis, "tiny", node="gpu-9")
    assert api.admin.put(f"{ROOT}/node/gpu-9", json={"reason": "x", "force": True}).status_code == 200


@pytest.mark.parametrize("kind", ["replica", "node"])
def test_a_cordoned_replica_that_is_still_ready_is_none_of_the_others(api, redis, kind):
    one, other = beat(redis, "tiny", node="gpu-7"), beat(redis, "tiny", node="gpu-8")
    cordoned = one.id if kind == "replica" else one.node
    api.admin.put(f"{ROOT}/{kind}/{cordoned}", json={"reason": "x"}).raise_for_status()
    for refused in (
        api.admin.post(f"/api/v1/admin/replicas/{other.id}/drain"),
        api.admin.put(f"{ROOT}/node/gpu-8", json={"reason": "x"}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "last_ready_replica"), refused.text


def test_one_cordon_that_two_admins_make_at_once_is_one_row(api, engine):
    def waiting() -> int:
        with engine.connect() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar_one()

    with ThreadPoolExecutor(2) as admins:
        with unit_of_work(engine) as session:
            drains.lock(session)
            made = [admins.submit(api.admin.put, f"{ROOT}/node/gpu-7", json={"reason": each}) for each in ("x", "y")]
            wait_until(lambda: waiting() == 2, what="both to wait")
        assert [each.result(30).status_code for each in made] == [200, 200]
    assert [each["name"] for each in api.admin.get(ROOT).json()["data"]] == ["gpu-7"]
