"""A POST with an Idempotency-Key has one effect, even when it is repeated or sent concurrently."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlmodel import Session

from control_plane.idempotency.service import IdempotentRequest, remove_expired
from core import db
from core.errors import Conflict


def post(api, path, body, key):
    return api.admin.post(path, json=body, headers={"idempotency-key": key})


def test_a_repeated_request_gets_the_same_response_and_no_second_effect(api):
    body = {"name": "Acme", "plan": api.plan()["id"]}
    first = post(api, "/api/v1/admin/tenants", body, "k1")
    again = post(api, "/api/v1/admin/tenants", body, "k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len(api.admin.get("/api/v1/admin/tenants").json()["data"]) == 1


def test_the_key_of_another_request_is_refused(api):
    plan = api.plan()["id"]
    post(api, "/api/v1/admin/tenants", {"name": "Acme", "plan": plan}, "k1").raise_for_status()
    other = post(api, "/api/v1/admin/tenants", {"name": "Other", "plan": plan}, "k1")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_a_refused_request_may_be_sent_again_with_its_key(api):
    body = {"name": "Acme", "plan": "later"}
    assert post(api, "/api/v1/admin/tenants", body, "k1").status_code == 400
    api.plan("later")
    assert post(api, "/api/v1/admin/tenants", body, "k1").status_code == 201


def test_two_tenants_may_use_the_same_key(api):
    for tenant in (api.tenant(), api.tenant()):
        made = tenant.http.post("/api/v1/api-keys", json={}, headers={"idempotency-key": "same"})
        assert (made.status_code, made.json()["tenant_id"]) == (201, tenant.id)


def test_the_replay_of_a_new_key_never_shows_the_secret_and_none_is_stored(api, postgres_settings):
    tenant = api.tenant()
    first, again = (
        tenant.http.post("/api/v1/api-keys", json={"name": "ci"}, headers={"idempotency-key": "once"}).json()
        for _ in range(2)
    )
    assert first["key"].startswith("tnr_live_")
    assert (again["id"], again["key"]) == (first["id"], None)
    assert "rotate" in again["note"]
    with psycopg.connect(postgres_settings.postgres_dsn.replace("+psycopg", "")) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            dump = str(connection.execute(f'SELECT * FROM "{table}"').fetchall())
            for secret in (first["key"], tenant.key, api.admin_secret):
                assert secret not in dump, table


@pytest.mark.parametrize("key", ["", "x" * 256, "with space", "t\tab"])
def test_an_invalid_idempotency_key_is_refused(shared_api, key):
    response = post(shared_api, "/api/v1/admin/tenants", {"name": "Acme", "plan": "x"}, key)
    assert (response.status_code, response.json()["param"]) == (400, "idempotency-key")


def test_fifty_concurrent_requests_have_one_effect(api):
    tenant = api.tenant()
    client = tenant.http

    def send(_):
        return client.post("/api/v1/api-keys", json={"name": "burst"}, headers={"idempotency-key": "burst"})

    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(send, range(50)))
    assert {response.status_code for response in responses} <= {201, 409}
    fresh = [response for response in responses if response.status_code == 201 and response.json()["key"]]
    assert len(fresh) == 1
    assert len([key for key in client.get("/api/v1/api-keys").json()["data"] if key["name"] == "burst"]) == 1


def test_a_repeat_during_the_first_request_is_refused_as_in_progress(engine, postgres_settings):
    impatient = db.connect(postgres_settings)
    once = {"caller": "tn_1", "key": "slow", "request_sha256": "0" * 64}

    def effect(_: Session) -> str:
        with impatient.connect() as connection:
            connection.exec_driver_sql("SET lock_timeout = '100ms'")
            connection.commit()
        with pytest.raises(Conflict, match="still running"):
            IdempotentRequest(impatient, **once).run(lambda _session: "second")
        return "first"

    assert IdempotentRequest(engine, **once).run(effect).content == "first"
    impatient.dispose()


def test_a_request_that_dies_before_its_response_has_no_effect(engine):
    once = {"caller": "tn_1", "key": "dies", "request_sha256": "0" * 64}

    def effect(session: Session) -> str:
        session.connection().exec_driver_sql("CREATE TABLE effects ()")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        IdempotentRequest(engine, **once).run(effect)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT to_regclass('effects')").scalar() is None
    assert IdempotentRequest(engine, **once).run(lambda _: "now").content == "now"


def test_old_responses_are_deleted(engine):
    IdempotentRequest(engine, caller="tn_1", key="old", request_sha256="0" * 64).run(lambda _: "x")
    with db.unit_of_work(engine) as session:
        assert remove_expired(session, 60) == 0
        session.connection().exec_driver_sql("UPDATE idempotent_responses SET created_at = now() - interval '61 s'")
        assert remove_expired(session, 60) == 1
