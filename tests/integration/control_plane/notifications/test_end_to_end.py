"""The API and a billing worker together: a tenant registers, confirms, tests and repairs endpoints, and gets what was
sent.
"""

import os
import re
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from billing.notifications.outbox import notify
from billing.notifications.settings import NotificationSettings
from control_plane import database_roles
from control_plane.settings import WebSettings
from core import redis_acl
from core.db import unit_of_work
from tests.conftest import wait_until
from tests.fixtures import billing_worker
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.least_privilege import user_url
from tests.fixtures.notifications.receivers import MailServer, WebhookReceiver, mail_server, webhook_receiver

KEY = "key-of-the-tests"
SENDER = "billing@tenora.example"
PATH = "/api/v1/notification-endpoints"


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    notifications = NotificationSettings(
        notifications_key=SecretStr(KEY),
        notifications_email_from=SENDER,
        notifications_allow_loopback=True,
        deployment="one-machine",
    )
    web = WebSettings(control_port=0, acknowledge_wait_ms=0)
    return control_settings(postgres_settings, redis_settings, s3_settings, web=web, notifications=notifications)


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def worker(postgres_settings, redis_settings, mail, tmp_path) -> Iterator[None]:
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": user_url(postgres_settings.postgres_dsn, database_roles.BILLING),
        "TENORA_REDIS_URL": user_url(redis_settings.redis_url, redis_acl.BILLING),
        "TENORA_DEPLOYMENT": "one-machine",
        "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK": "true",
        "TENORA_NOTIFICATIONS_KEY": KEY,
        "TENORA_NOTIFICATIONS_EMAIL_FROM": SENDER,
        "TENORA_SMTP_HOST": "127.0.0.1",
        "TENORA_SMTP_PORT": str(mail.port),
        "TENORA_SMTP_SECURITY": "none",
    }
    with billing_worker.worker(environment, tmp_path / "log") as process:
        yield
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.usefixtures("worker")
def test_a_tenant_sets_alerts_up_and_gets_them(api, engine, mail, hook):
    tenant = api.tenant()

    def post(path: str, **body):
        return tenant.http.post(path, json=body).raise_for_status().json()

    address = post(PATH, kind="email", address="owner@example.com")
    wait_until(lambda: mail.messages, timeout_s=60, what="the message with the code")
    (code,) = re.findall(r"^ {4}(\w{16})\r?$", mail.messages[0].get_content(), flags=re.MULTILINE)
    assert post(f"{PATH}/{address['id']}/confirm", code=code)["status"] == "active"

    webhook = post(PATH, kind="webhook", address=hook.url, event_types=["balance.low"])
    tested = tenant.http.post(f"{PATH}/{webhook['id']}/messages").raise_for_status().json()
    wait_until(lambda: hook.received, what="the test message")
    assert Webhook(webhook["secret"]).verify(hook.received[0].body, hook.received[0].headers)["type"] == "endpoint.test"
    assert hook.ids == [tested["notification_id"]]

    rotated = tenant.http.post(f"{PATH}/{webhook['id']}/rotate-secret").raise_for_status().json()
    hook.status = 410
    with unit_of_work(engine) as session:
        data = {"balance_nanos": 4_000_000_000, "floor_nanos": 5_000_000_000}
        alert = notify(session, tenant_id=tenant.id, event_type="balance.low", data=data, dedupe_key="low:1")
    wait_until(lambda: len(mail.messages) == 3, what="the alert and the news of the disabled webhook")
    subjects = sorted(each["Subject"] for each in mail.messages[1:])
    assert subjects == ["[Tenora] Alerts to one of your endpoints have stopped", "[Tenora] Your balance is $4.00"]
    assert tenant.http.get(f"{PATH}/{webhook['id']}").json()["status"] == "disabled"

    hook.status = 200
    tenant.http.patch(f"{PATH}/{webhook['id']}", json={"status": "active"}).raise_for_status()
    assert post(f"{PATH}/{webhook['id']}/replay", since="2026-01-01T00:00:00Z") == {"queued": 1, "more": False}
    wait_until(lambda: len(hook.received) == 3, what="the replayed alert")
    assert hook.ids[1:] == [alert, alert]
    for secret in (webhook["secret"], rotated["secret"]):
        assert Webhook(secret).verify(hook.received[2].body, hook.received[2].headers)["data"] == data
    listed = tenant.http.get("/api/v1/notification-deliveries", params={"endpoint_id": webhook["id"]}).json()["data"]
    wait_until(
        lambda: tenant.http.get(f"/api/v1/notification-deliveries/{listed[0]['id']}").json()["state"] == "delivered",
        what="the recorded delivery",
    )
    assert [each["event_type"] for each in listed] == ["balance.low", "endpoint.test"]
