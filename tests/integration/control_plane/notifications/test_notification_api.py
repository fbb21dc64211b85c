"""A tenant's routes over its endpoints: what is registered, what is refused, and what another tenant sees of it."""

import socket
from dataclasses import replace

import pytest
from pydantic import SecretStr

from billing.notifications.settings import NotificationSettings
from billing.notifications.signing_secrets import SecretBox
from control_plane.settings import WebSettings
from tests.fixtures.control_plane.api import Api, Tenant, control_settings, running_api

KEY = "key-of-the-tests"
BOX = SecretBox([KEY.encode()])
SETUP = {
    "notifications_key": SecretStr(KEY),
    "notifications_email_from": "billing@tenora.example",
    "notifications_allow_loopback": True,
    "deployment": "one-machine",
    "notifications_endpoints_max": 4,
    "notifications_messages_per_hour_max": 5,
}
PATH = "/api/v1/notification-endpoints"
HOOK = {"kind": "webhook", "address": "http://127.0.0.1:9999/hook/secret-path"}
MAIL = {"kind": "email", "address": "owner@example.com"}


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return control_settings(
        postgres_settings,
        redis_settings,
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        notifications=NotificationSettings(**SETUP),
    )


@pytest.fixture
def tenant(api: Api) -> Tenant:
    return api.tenant()


def created(tenant: Tenant, **body) -> dict:
    response = tenant.http.post(PATH, json=body)
    assert response.status_code == 201, response.text
    return response.json()


def problem(response) -> tuple[int, str, str | None]:
    body = response.json()
    return response.status_code, body["code"], body.get("param")


def test_a_webhook_is_active_at_once_and_shows_its_secret_once(tenant, engine):
    made = created(tenant, **HOOK)
    assert made["status"] == "active"
    assert made["secret"].startswith("whsec_")
    shown = tenant.http.get(f"{PATH}/{made['id']}").json()
    assert "secret" not in shown
    assert shown["address"] == HOOK["address"]
    assert tenant.http.get(PATH).json()["data"] == [shown]
    with engine.connect() as connection:
        stored = connection.exec_driver_sql("SELECT signing_secret FROM notification_endpoints").scalar_one()
        audited = connection.exec_driver_sql(
            "SELECT details FROM audit_events WHERE action = 'notification_endpoint.created'"
        ).scalar_one()
    assert BOX.open(bytes(stored), made["id"]) == made["secret"]
    assert audited == {"kind": "webhook", "address": "http://127.0.0.1", "event_types": []}


def test_a_replayed_request_registers_once_and_has_no_secret(tenant):
    first, second = (tenant.http.post(PATH, json=HOOK, headers={"idempotency-key": "one"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["idempotent-replayed"] == "true"
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["secret"] is None
    assert len(tenant.http.get(PATH).json()["data"]) == 1


def test_an_email_address_is_active_only_after_its_code(tenant):
    made = created(tenant, **MAIL)
    assert (made["status"], made["secret"]) == ("unconfirmed", None)
    confirm = f"{PATH}/{made['id']}/confirm"
    refused = tenant.http.post(confirm, json={"code": "wrong"})
    assert problem(refused) == (400, "invalid_confirmation_code", "code")
    patched = tenant.http.patch(f"{PATH}/{made['id']}", json={"status": "active"})
    assert problem(patched)[:2] == (409, "endpoint_unconfirmed")
    deliveries = tenant.http.get("/api/v1/notification-deliveries").json()["data"]
    assert [each["event_type"] for each in deliveries] == ["endpoint.confirmation"]
    code = BOX.confirmation_code(made["id"], MAIL["address"])
    assert code not in str(deliveries)
    assert tenant.http.post(confirm, json={"code": code}).json()["status"] == "active"
    assert tenant.http.post(confirm, json={"code": code}).status_code == 200, "the same again changes nothing"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"kind": "webhook", "address": "ftp://example.com/"}, (400, "invalid_webhook_address", "address")),
        ({"kind": "webhook", "address": "https://a.invalid/"}, (422, "webhook_host_not_found", "address")),
        ({"kind": "webhook", "address": "https://169.254.169.254/"}, (422, "webhook_address_not_public", "address")),
        ({"kind": "email", "address": "a@example.com\r\nBcc: b@x.de"}, (400, "invalid_email_address", "address")),
        (HOOK | {"event_types": ["endpoint.test"]}, (400, "invalid_value", "event_types[0]")),
    ],
)
def test_a_bad_endpoint_is_refused_with_its_field_and_leaves_nothing(tenant, engine, body, expected):
    assert problem(tenant.http.post(PATH, json=body)) == expected
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM notification_endpoints").scalar_one() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM notifications").scalar_one() == 0


@pytest.mark.scenario(97)
def test_without_the_setting_loopback_is_refused_and_never_contacted(settings):
    strict = NotificationSettings(**(SETUP | {"notifications_allow_loopback": False, "deployment": "production"}))
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        running_api(replace(settings, notifications=strict)) as api,
    ):
        listening.settimeout(0.2)
        tenant = api.tenant()
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "[::1]", "2130706433"):
            address = {"kind": "webhook", "address": f"https://{host}:{port}/"}
            assert problem(tenant.http.post(PATH, json=address)) == (422, "webhook_address_not_public", "address")
        plain = {"kind": "webhook", "address": f"http://127.0.0.1:{port}/"}
        assert problem(tenant.http.post(PATH, json=plain)) == (400, "invalid_webhook_address", "address")
        with pytest.raises(TimeoutError):
            listening.accept()


def test_an_installation_without_keys_or_a_sender_says_so(settings):
    for missing, body in (("notifications_key", HOOK), ("notifications_email_from", MAIL)):
        partial = NotificationSettings(**(SETUP | {missing: None}))
        with running_api(replace(settings, notifications=partial)) as api:
            assert problem(api.tenant().http.post(PATH, json=body))[:2] == (422, "notifications_not_set_up")


def test_the_same_address_twice_and_too_many_endpoints_are_refused(tenant):
    created(tenant, **HOOK)
    assert problem(tenant.http.post(PATH, json=HOOK)) == (409, "notification_endpoint_exists", "address")
    for number in range(3):
        created(tenant, kind="webhook", address=f"http://127.0.0.1:9999/{number}")
    over = tenant.http.post(PATH, json={"kind": "webhook", "address": "http://127.0.0.1:9999/over"})
    assert problem(over)[:2] == (403, "notification_endpoint_quota_exceeded")
    endpoint = tenant.http.get(PATH).json()["data"][-1]["id"]
    assert tenant.http.delete(f"{PATH}/{endpoint}").status_code == 204
    assert tenant.http.delete(f"{PATH}/{endpoint}").status_code == 404
    created(tenant, **HOOK)


def test_a_suspended_tenant_can_still_repair_its_alerts(api, tenant):
    endpoint = created(tenant, **HOOK)["id"]
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended"}).raise_for_status()
    assert tenant.http.patch(f"{PATH}/{endpoint}", json={"event_types": ["balance.low"]}).status_code == 200


def test_changes_of_types_and_status_and_what_a_disabled_endpoint_refuses(tenant):
    endpoint = created(tenant, **HOOK, event_types=["balance.low", "balance.low"])
    assert endpoint["event_types"] == ["balance.low"]
    path = f"{PATH}/{endpoint['id']}"
    delivery = tenant.http.post(f"{path}/messages").json()
    assert (delivery["state"], delivery["event_type"]) == ("pending", "endpoint.test")
    disabled = tenant.http.patch(path, json={"status": "disabled"}).json()
    assert disabled["disabled_reason"] == "disabled by the tenant"
    ended = tenant.http.get(f"/api/v1/notification-deliveries/{delivery['id']}").json()
    assert (ended["state"], ended["last_error"], ended["next_attempt_at"]) == (
        "failed",
        "the endpoint is disabled",
        None,
    )
    deliveries = "/api/v1/notification-deliveries"
    for state, found in (("failed", [ended]), ("pending", [])):
        assert tenant.http.get(deliveries, params={"delivery_state": state}).json()["data"] == found
    for answer in (
        tenant.http.post(f"{path}/messages"),
        tenant.http.post(f"{path}/replay", json={"since": "2026-01-01T00:00:00Z"}),
        tenant.http.post(f"/api/v1/notification-deliveries/{delivery['id']}/replay"),
    ):
        assert problem(answer)[:2] == (409, "endpoint_disabled")
    assert tenant.http.patch(path, json={"status": "active", "event_types": []}).json()["disabled_reason"] is None
    again = tenant.http.post(f"/api/v1/notification-deliveries/{delivery['id']}/replay").json()
    assert (again["state"], again["notification_id"]) == ("pending", delivery["notification_id"])


def test_requested_messages_are_limited_per_hour(tenant):
    endpoint = created(tenant, **HOOK)["id"]
    answers = [tenant.http.post(f"{PATH}/{endpoint}/messages") for _ in range(6)]
    assert [each.status_code for each in answers] == [201] * 5 + [429]
    assert answers[-1].json()["code"] == "notification_messages_exceeded"
    assert int(answers[-1].headers["retry-after"]) > 0
