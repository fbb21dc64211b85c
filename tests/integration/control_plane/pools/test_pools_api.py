"""Pools through the API: bounds, complete revisions that never change, and the replicas that run them."""

import msgspec
import pytest
from sqlmodel import select

from control_plane.pools import routes
from control_plane.publishing.models import OutboxChange
from core import redis_keys
from core.contracts.fleet import WantedPool, WantedRevision
from core.contracts.pool_revisions import PoolRevision, settings_of
from core.contracts.routes import PoolRoute
from core.db import unit_of_work
from core.engine_settings import EngineSettings
from tests.fixtures.control_plane.registry_rows import beat

ROOT = "/api/v1/admin/pools"
WEIGHTS, OTHER_WEIGHTS = "a" * 64, "b" * 64
FIRST = {"weights": WEIGHTS, "engine": "vllm 0.32.0 gpu"}


@pytest.fixture
def pool(api, base) -> dict:
    body = {"name": "chat", "base_model": base.id, "replicas_max": 3}
    return api.admin.post(ROOT, json=body).raise_for_status().json()


def revise(api, **changes):
    return api.admin.post(f"{ROOT}/chat/revisions", json=changes)


def test_a_revision_has_every_setting_and_the_digest_that_a_replica_computes(api, pool, base):
    made = revise(api, **FIRST, settings={"engine_slots": 32})
    assert made.status_code == 201, made.text
    settings = settings_of(EngineSettings(engine_slots=32, engine_dtype="bfloat16"))
    expected = PoolRevision(base_model=base.id, weights=WEIGHTS, engine="vllm 0.32.0 gpu", settings=settings)
    assert (made.json()["settings"], made.json()["digest"]) == (settings, expected.digest)
    environment = made.json()["environment"]
    assert environment["TENORA_POOL_REVISION"] == expected.digest
    given = {name.removeprefix("TENORA_").lower(): value for name, value in environment.items()}
    assert settings_of(EngineSettings.model_validate({name: given[name] for name in settings})) == settings


def test_the_next_revision_is_the_newest_with_changes(api, pool):
    revise(api, **FIRST, settings={"engine_slots": 32}).raise_for_status()
    second = revise(api, weights=OTHER_WEIGHTS).json()
    assert (second["number"], second["weights"], second["settings"]["engine_slots"]) == (2, OTHER_WEIGHTS, 32)
    same = revise(api)
    assert (same.status_code, same.json()["code"]) == (409, "pool_revision_exists")
    listed = api.admin.get(f"{ROOT}/chat/revisions", params={"limit": 1}).json()
    assert [each["number"] for each in listed["data"]] == [2]
    rest = api.admin.get(f"{ROOT}/chat/revisions", params={"cursor": listed["next_cursor"]}).json()
    assert ([each["number"] for each in rest["data"]], rest["next_cursor"]) == ([1], None)


def test_a_pool_shows_what_its_replicas_run_and_goes_back_by_naming_an_older_revision(api, redis, pool, base):
    digests = [revise(api, **FIRST).json()["digest"], revise(api, weights=OTHER_WEIGHTS).json()["digest"]]
    for digest, state in ((digests[0], "ready"), (digests[0], "ready"), (digests[1], "failed"), ("unknown", "ready")):
        beat(redis, base.id, pool="chat", revision=digest, state=state)
    beat(redis, base.id, pool="another", revision=digests[0])
    for state in ("failed", "starting"):  # one copy, which was started again
        at_ms = {"failed": 1, "starting": 2}[state]
        beat(redis, base.id, pool="chat", revision=digests[1], copy="chat-2-1", state=state, heartbeat_ms=at_ms)
    for number in (2, 1):
        used = api.admin.put(f"{ROOT}/chat/revision", json={"revision": number})
        assert (used.status_code, used.json()["revision"]) == (200, number), used.text
    assert api.admin.get(f"{ROOT}/chat").json()["replicas"] == [
        {"revision": None, "state": "ready", "count": 1},
        {"revision": 1, "state": "ready", "count": 2},
        {"revision": 2, "state": "failed", "count": 1},
        {"revision": 2, "state": "starting", "count": 1},
    ]
    assert [each["revision"] for each in api.admin.get(ROOT).json()["data"]] == [1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "Chat"}, "name"),
        ({"name": "chat\n"}, "name"),
        ({"base_model": "none"}, "base_model"),
        ({"base_model": "a\0b"}, "base_model"),
        ({"rank_max": 12}, "rank_max"),
        ({"replicas_min": 4, "replicas_max": 3}, "replicas_min"),
        ({"replicas_max": 10_001}, "replicas_max"),
        ({"hardware": "H100\0"}, "hardware"),
        ({"region": "eu"}, "region"),
        ({"service_classes": []}, "service_classes"),
        ({"service_classes": ["gold"]}, "service_classes[0]"),
        ({"tenants": ["tn_none"]}, "tenants"),
        ({"tokens_min": 9, "tokens_max": 8}, "tokens_min"),
        ({"tokens_max": 0}, "tokens_max"),
    ],
)
def test_a_wrong_pool_is_refused_by_its_field(api, base, body, param):
    refused = api.admin.post(ROOT, json={"name": "chat", "base_model": base.id} | body)
    assert (refused.status_code, refused.json()["param"]) == (400, param), refused.text
    assert api.admin.get(ROOT).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weights": "abc"}, "weights"),
        ({"engine": ""}, "engine"),
        ({"settings": {"engine_seats": 4}}, "settings.engine_seats"),
        ({"settings": {"engine_slots": "many"}}, "settings.engine_slots"),
        ({"settings": {"engine_slots": 0}}, "settings.engine_slots"),
        ({"settings": {"engine_slots": True}}, "settings.engine_slots"),
        ({"settings": {"engine_rank_max": 64}}, "settings.engine_rank_max"),
        ({"settings": {"engine_dtype": "auto"}}, "settings.engine_dtype"),
        ({"settings": {"model_path": "/"}}, "settings.model_path"),
    ],
)
def test_a_wrong_revision_is_refused_by_its_field(api, pool, body, param):
    refused = revise(api, **FIRST | body)
    assert (refused.status_code, refused.json()["param"]) == (400, param), refused.text
    assert api.admin.get(f"{ROOT}/chat/revisions").json()["data"] == []


def test_a_first_revision_without_weights_or_engine_is_refused(api, pool):
    for body, param in (({"engine": "vllm"}, "weights"), ({"weights": WEIGHTS}, "engine")):
        refused = revise(api, **body)
        assert (refused.status_code, refused.json()["param"]) == (400, param), refused.text


def test_what_is_not_there_is_named(api, pool):
    for answer, code in (
        (api.admin.get(f"{ROOT}/absent"), "pool_not_found"),
        (api.admin.get(f"{ROOT}/absent/revisions"), "pool_not_found"),
        (api.admin.patch(f"{ROOT}/absent", json={}), "pool_not_found"),
        (api.admin.put(f"{ROOT}/chat/revision", json={"revision": 7}), "pool_revision_not_found"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, code), answer.text
    taken = api.admin.post(ROOT, json={"name": "chat", "base_model": pool["base_model"]})
    assert (taken.status_code, taken.json()["code"]) == (409, "pool_exists")


def test_bounds_change_one_by_one_and_stay_ordered(api, pool):
    assert api.admin.patch(f"{ROOT}/chat", json={"replicas_min": 2}).json()["replicas_min"] == 2
    refused = api.admin.patch(f"{ROOT}/chat", json={"replicas_max": 1})
    assert (refused.status_code, refused.json()["param"]) == (400, "replicas_min")
    assert api.admin.get(f"{ROOT}/chat").json()["replicas_max"] == 3


def test_a_pool_shows_how_many_replicas_placers_keep_running(api, redis, pool):
    assert api.admin.get(f"{ROOT}/chat").json()["replicas_wanted"] == 0
    revisions = [WantedRevision(number=number, replicas=number, environment={}) for number in (2, 1)]
    entry = WantedPool(pool="chat", revisions=tuple(revisions))
    redis.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(entry))
    assert api.admin.get(ROOT).json()["data"][0]["replicas_wanted"] == 3


def test_whom_a_pool_serves_is_published_and_taken_back(api, engine, base, pool):
    def published() -> list[PoolRoute]:
        with unit_of_work(engine) as session:
            return [value for _, value in routes.all_routes(session)]

    assert published() == [], "it serves all"
    tenant_id = api.tenant().id
    narrow = {"service_classes": ["batch"], "tenants": [tenant_id], "tokens_min": 1_000, "tokens_max": 2_000}
    changed = api.admin.patch(f"{ROOT}/chat", json=narrow).raise_for_status().json()
    assert {name: changed[name] for name in narrow} == narrow
    assert published() == [
        PoolRoute(
            base_model=base.id, service_classes=("batch",), tenants=(tenant_id,), tokens_min=1_000, tokens_max=2_000
        )
    ]
    api.admin.patch(f"{ROOT}/chat", json=dict.fromkeys(narrow)).raise_for_status()
    assert published() == []
    with unit_of_work(engine) as session:
        kinds = session.exec(select(OutboxChange.kind).where(OutboxChange.field == "chat")).all()
    assert kinds == ["pools"] * 3
