"""Aliases through the API: set, shown, rolled back and removed, and refusals that name the field."""

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.settings import PublishingSettings
from core import redis_keys
from core.contracts.routes import AdapterRoute, PrefetchHint
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.snapshot_keys import SIGNER

ALIASES = "/api/v1/adapters/bot/aliases"


@pytest.fixture
def tenant(api, base):
    made = api.tenant()
    made.adapter_id = made.adapter("bot", base)["id"]
    return made


@pytest.fixture
def ready(engine, tenant) -> list[str]:
    """Three ready revisions, oldest first."""
    return [ready_revision(engine, tenant.adapter_id)[0] for _ in range(3)]


def put(tenant, alias: str, **body):
    return tenant.http.put(f"{ALIASES}/{alias}", json=body)


def hinted(redis) -> list[PrefetchHint]:
    entries = redis.xrange(redis_keys.PREFETCH_HINTS)
    return [msgspec.json.decode(fields[b"hint"], type=PrefetchHint) for _, fields in entries]


def test_an_alias_change_hints_at_the_revision_to_prefetch(tenant, ready, base, redis):
    put(tenant, "prod", weights={ready[0]: 90, ready[2]: 10}).raise_for_status()
    assert {hint.engine_name.partition("@")[0] for hint in hinted(redis)} == {tenant.adapter_id}
    assert len({hint.engine_name for hint in hinted(redis)}) == 2
    assert {(hint.reason, hint.base_model) for hint in hinted(redis)} == {("flip", base.id)}
    tenant.http.delete(f"{ALIASES}/prod").raise_for_status()
    assert put(tenant, "prod", revision="rev_none").is_error
    assert len(hinted(redis)) == 2


@pytest.mark.parametrize("body", [{"revision": "rev\x00"}, {"weights": {"rev\x00": 1}}])
def test_a_revision_with_a_control_character_is_refused(tenant, body):
    refused = put(tenant, "prod", **body)
    assert refused.status_code == 400, refused.text
    assert "leave out control characters" in refused.json()["detail"]


def test_gateways_receive_the_newest_revisions_and_those_with_an_alias(engine, tenant, ready, redis):
    put(tenant, "old", revision=ready[0]).raise_for_status()
    relay = OutboxRelay(engine, redis, projections(PublishingSettings(revisions_published_max=1)), SIGNER)

    def published() -> AdapterRoute:
        while relay.run_once():
            pass
        return msgspec.json.decode(redis.hget(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), type=AdapterRoute)

    relay.rebuild("test")
    assert (set(published().revisions), published().newest) == ({ready[0], ready[2]}, ready[2])
    put(tenant, "old", revision=ready[1]).raise_for_status()
    assert set(published().revisions) == {ready[1], ready[2]}
    tenant.http.delete(f"{ALIASES}/old").raise_for_status()
    assert set(published().revisions) == {ready[2]}


def problem(response) -> tuple[int, str, str | None]:
    body = response.json()
    return response.status_code, body["code"], body.get("param")


def test_an_alias_change_returns_the_target_that_undoes_it(tenant, ready):
    first = put(tenant, "prod", revision=ready[0]).raise_for_status().json()
    assert (first["previous"], first["alias"]["revision"]) == (None, ready[0])
    assert first["alias"]["model"] == "bot:prod"
    shared = put(tenant, "prod", weights={ready[0]: 90, ready[1]: 10}).raise_for_status().json()
    assert (shared["previous"], shared["alias"]["revision"]) == ({"revision": ready[0]}, None)
    flipped = put(tenant, "prod", revision=ready[1]).raise_for_status().json()
    assert flipped["previous"] == {"weights": {ready[0]: 90, ready[1]: 10}}
    back = put(tenant, "prod", **flipped["previous"]).raise_for_status().json()
    assert back["alias"]["weights"] == {ready[0]: 90, ready[1]: 10}
    assert tenant.http.get(f"{ALIASES}/prod").json() == back["alias"]
    put(tenant, "canary", revision=ready[2]).raise_for_status()
    assert [each["name"] for each in tenant.http.get(ALIASES).json()["data"]] == ["canary", "prod"]
    removed = tenant.http.delete(f"{ALIASES}/prod").raise_for_status().json()
    assert (removed["alias"], removed["previous"]) == (None, {"weights": {ready[0]: 90, ready[1]: 10}})
    assert problem(tenant.http.get(f"{ALIASES}/prod")) == (404, "alias_not_found", None)
    assert problem(tenant.http.delete(f"{ALIASES}/prod")) == (404, "alias_not_found", None)


def test_gateways_receive_every_alias_and_every_ready_revision(tenant, ready, relay, redis, engine):
    put(tenant, "prod", weights={ready[0]: 3, ready[2]: 1}).raise_for_status()
    put(tenant, "old", revision=ready[1]).raise_for_status()
    ready_revision(engine, tenant.adapter_id, status="rejected")

    def published() -> AdapterRoute:
        return msgspec.json.decode(redis.hget(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), type=AdapterRoute)

    while relay.run_once():
        pass
    route = published()
    assert route.aliases == {"prod": {ready[0]: 3, ready[2]: 1}, "old": {ready[1]: 1}}
    assert (sorted(route.revisions), route.newest) == (sorted(ready), ready[2])
    assert {(each.rank, each.rank_class) for each in route.revisions.values()} == {(8, 16)}
    relay.rebuild("test")
    assert published() == route
    tenant.http.delete(f"{ALIASES}/old").raise_for_status()
    while relay.run_once():
        pass
    assert published().aliases == {"prod": {ready[0]: 3, ready[2]: 1}}


def test_an_invalid_alias_target_is_refused_by_name(tenant, ready, api, base, engine):
    other = api.tenant()
    foreign, _ = ready_revision(engine, other.adapter("bot", base)["id"])
    waiting, _ = ready_revision(engine, tenant.adapter_id, status="validating")
    refused = [
        ({}, (400, "invalid_value", "revision")),
        ({"revision": ready[0], "weights": {ready[1]: 1}}, (400, "invalid_value", "revision")),
        ({"revision": "rev_none"}, (400, "revision_not_found", "revision")),
        ({"revision": foreign}, (400, "revision_not_found", "revision")),
        ({"revision": waiting}, (409, "revision_not_ready", "revision")),
        ({"weights": {ready[0]: 1, waiting: 1}}, (409, "revision_not_ready", f"weights.{waiting}")),
        ({"weights": {}}, (400, "invalid_value", "weights")),
        ({"weights": {ready[0]: 0}}, (400, "invalid_value", f"weights.{ready[0]}")),
        ({"weights": {ready[0]: -1, ready[1]: 2}}, (400, "invalid_value", f"weights.{ready[0]}")),
        ({"weights": {f"rev_{n}": 1 for n in range(11)}}, (400, "invalid_value", "weights")),
        ({"weights": {ready[0]: 1_000_000, ready[1]: 1}}, (400, "invalid_value", "weights")),
        ({"weights": {ready[0]: 10**30}}, (400, None, None)),
        ({"weights": {ready[0]: True}}, (400, None, None)),
        ({"weights": {ready[0]: 0.5}}, (400, None, None)),
        ({"weights": [ready[0]]}, (400, None, None)),
        ({"revision": "x" * 65}, (400, None, "revision")),
        ({"revision": ready[0], "after": 1}, (400, "unknown_field", "after")),
    ]
    for body, (status, code, param) in refused:
        response = put(tenant, "prod", **body)
        said = problem(response)
        expected = (status, code or said[1], param or said[2])
        assert said == expected, response.text
    assert tenant.http.get(ALIASES).json()["data"] == []
    for alias in ("Prod", "-a", "a" * 64, "a_b", "a%20b", "a:b", "a@b"):
        assert problem(put(tenant, alias, revision=ready[0])) == (400, "invalid_name", "alias"), alias


def test_the_number_of_aliases_is_bounded(tenant, ready):
    for number in range(20):
        put(tenant, f"a{number}", revision=ready[0]).raise_for_status()
    assert problem(put(tenant, "a20", revision=ready[0])) == (403, "alias_quota_exceeded", None)
    put(tenant, "a7", revision=ready[1]).raise_for_status()


def test_concurrent_alias_changes_are_serialized(tenant, ready):
    """Each response names the previous target, so the chain of changes has no fork."""
    together = threading.Barrier(6)

    def move(number: int) -> tuple[str | None, str]:
        together.wait()
        moved = put(tenant, "prod", revision=ready[number % 3]).raise_for_status().json()
        return moved["previous"] and moved["previous"]["revision"], moved["alias"]["revision"]

    with ThreadPoolExecutor(6) as pool:
        moves = list(pool.map(move, range(6)))
    last = tenant.http.get(f"{ALIASES}/prod").json()["revision"]
    befores = [str(before) for before, _ in moves]
    assert sorted([*befores, last]) == sorted(["None", *(after for _, after in moves)])


def test_a_new_adapter_with_a_deleted_ones_name_has_none_of_its_aliases(tenant, ready, base):
    put(tenant, "prod", revision=ready[0]).raise_for_status()
    tenant.http.delete("/api/v1/adapters/bot").raise_for_status()
    assert problem(tenant.http.get(ALIASES)) == (404, "adapter_not_found", None)
    tenant.adapter("bot", base)
    assert tenant.http.get(ALIASES).json()["data"] == []
    assert problem(put(tenant, "prod", revision=ready[0])) == (400, "revision_not_found", "revision")
