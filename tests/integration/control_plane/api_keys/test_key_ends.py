"""How keys end: by themselves, by a rotation with an overlap, and what they may call until then."""

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from control_plane.api_keys import service
from control_plane.api_keys.models import ApiKey
from core import clock
from core.api_keys import hash_key
from core.db import unit_of_work
from tests.fixtures.control_plane.api import PEPPER

KEYS = "/api/v1/api-keys"


@pytest.fixture
def tenant(api):
    return api.tenant()


@pytest.fixture
def moved(engine):
    """Moves an instant of a key into the past, as time does."""

    def move(key_id: str, column: str) -> None:
        with unit_of_work(engine) as session:
            before = {column: clock.now() - timedelta(seconds=1)}
            session.execute(sa.update(ApiKey).where(ApiKey.id == key_id).values(before))

    return move


def made(tenant, **fields) -> dict:
    return tenant.http.post(KEYS, json=fields).raise_for_status().json()


def status(api, secret: str) -> int:
    return api.client(secret).get("/api/v1/me").status_code


def published(engine, *secrets: str) -> list:
    """What gateways get of these secrets, after the worker's round."""
    with unit_of_work(engine) as session:
        service.end_expired(session)
    with unit_of_work(engine) as session:
        grants = [service.grant(session, hash_key(secret, PEPPER.encode())) for secret in secrets]
        every = dict(service.all_grants(session))
    assert [every.get(hash_key(secret, PEPPER.encode())) for secret in secrets] == grants
    return grants


def test_a_rotated_key_keeps_its_id_and_both_secrets_are_valid_until_the_overlap_ends(api, tenant, engine, moved):
    old = made(tenant, name="ci", limits={"kv_pages": 9}, models=["bot"])
    new = tenant.http.post(f"{KEYS}/{old['id']}/rotate", json={"overlap": "1h"}).json()
    kept = ("id", "name", "limits", "models", "scopes", "expires_at")
    assert [new[name] for name in kept] == [old[name] for name in kept]
    assert (status(api, old["key"]), status(api, new["key"])) == (200, 200)
    before, after = published(engine, old["key"], new["key"])
    assert (before.key_id, before.models, after.expires_at_ms) == (old["id"], ("bot",), None)
    assert 0 < before.expires_at_ms - clock.now_ms() <= 3_600_000
    moved(old["id"], "previous_ends_at")
    assert (status(api, old["key"]), status(api, new["key"])) == (401, 200)
    assert published(engine, old["key"], new["key"]) == [None, after]
    assert tenant.http.get(f"{KEYS}/{old['id']}").json()["previous_ends_at"] is None


def test_a_rotation_without_overlap_and_the_next_rotation_end_the_secret_before_at_once(api, tenant, engine):
    key = made(tenant)
    path, secrets = f"{KEYS}/{key['id']}/rotate", [key["key"]]
    overlaps = ("none", "7d", "24h")
    secrets += [tenant.http.post(path, json={"overlap": overlap}).json()["key"] for overlap in overlaps]
    assert [status(api, secret) for secret in secrets] == [401, 401, 200, 200]
    assert [grant is not None for grant in published(engine, *secrets)] == [False, False, True, True]
    tenant.http.delete(f"{KEYS}/{key['id']}").raise_for_status()
    assert {status(api, secret) for secret in secrets} == {401}
    assert published(engine, *secrets) == [None] * 4
    ended = tenant.http.post(path, json={})
    assert (ended.status_code, ended.json()["code"]) == (409, "api_key_ended")


def test_an_expired_key_is_refused_at_once_and_then_revoked_by_the_worker(api, tenant, engine, moved):
    key = made(tenant, expires_in_days=1)
    life = datetime.fromisoformat(key["expires_at"]) - datetime.fromisoformat(key["created_at"])
    assert abs(life - timedelta(days=1)) < timedelta(seconds=1)
    assert status(api, key["key"]) == 200
    moved(key["id"], "expires_at")
    assert status(api, key["key"]) == 401
    assert tenant.http.post(f"{KEYS}/{key['id']}/rotate", json={}).status_code == 409
    assert published(engine, key["key"]) == [None]
    shown = tenant.http.get(f"{KEYS}/{key['id']}").json()
    assert shown["revoked_at"] == shown["expires_at"]


def test_a_key_cannot_get_a_secret_with_more_rights_by_rotating_another(api, tenant):
    wide, reader = made(tenant), api.client(made(tenant, scopes=["keys:write", "usage:read"])["key"])
    bound = api.client(made(tenant, models=["bot"])["key"])
    for caller, code in ((reader, "scope_missing"), (bound, "key_limited")):
        refused = caller.post(f"{KEYS}/{wide['id']}/rotate", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, code)
    assert status(api, wide["key"]) == 200


def test_a_replayed_rotation_changes_nothing_and_shows_no_secret(api, tenant):
    key, header = made(tenant), {"idempotency-key": "rotate-1"}
    path = f"{KEYS}/{key['id']}/rotate"
    first = tenant.http.post(path, json={"overlap": "none"}, headers=header).json()
    again = tenant.http.post(path, json={"overlap": "none"}, headers=header).json()
    assert (again["key"], again["id"]) == (None, first["id"])
    assert status(api, first["key"]) == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_in_days": 0}, "expires_in_days"),
        ({"expires_in_days": 3_651}, "expires_in_days"),
        ({"models": []}, "models"),
        ({"models": ["bot:prod"]}, "models[0]"),
        ({"models": ["a", "=cmd"]}, "models[1]"),
    ],
)
def test_a_wrong_end_or_model_is_named(tenant, fields, param):
    refused = tenant.http.post(KEYS, json=fields)
    assert (refused.status_code, refused.json()["param"]) == (400, param)
