"""Deliveries to real receivers: signed, retried with the same id, in order, and once unless a worker dies."""

import os
import threading

import pytest
from sqlalchemy.exc import OperationalError
from standardwebhooks import Webhook, WebhookVerificationError

from billing.notifications.delivery import DeliveryRunner
from billing.notifications.delivery_queue import DeliveryQueue
from billing.notifications.retries import SendResult
from control_plane import database_roles
from core import redis_acl
from core.db import unit_of_work
from tests.conftest import wait_until
from tests.fixtures.billing_worker import worker
from tests.fixtures.least_privilege import user_url
from tests.fixtures.notifications.receivers import webhook_receiver
from tests.integration.billing.notifications.conftest import BOX


def test_a_webhook_gets_a_signed_message_that_the_library_verifies(alerts, hook):
    endpoint, secret = alerts.endpoint("tn_1", hook.url + "?a=%2F")
    notification = alerts.notify("tn_1", "spend:50", scope="Zoë's account")
    assert alerts.deliver_due() == 1
    (received,) = hook.received
    body = Webhook(secret).verify(received.body, received.headers)
    assert received.path == "/hook?a=%2F"
    assert (body["type"], body["tenant_id"]) == ("spend.threshold_reached", "tn_1")
    assert body["data"]["scope"] == "Zoë's account"
    assert body["data"]["spent_nanos"] == 5_000_000_000
    assert received.headers["webhook-id"] == notification
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"].startswith("Tenora-Webhooks/")
    assert [each["state"] for each in alerts.deliveries(endpoint)] == ["delivered"]
    assert alerts.deliver_due() == 0


@pytest.mark.scenario(96)
def test_an_endpoint_that_was_down_for_two_hours_gets_the_message_afterwards_with_the_same_id(alerts, hook):
    endpoint, secret = alerts.endpoint("tn_1", hook.url)
    hook.status = 503
    notification = alerts.notify("tn_1", "spend:50")
    refused = alerts.live_through(hours=2)
    assert 8 < refused < 30
    assert alerts.state(endpoint)["failing_since"] is not None
    assert alerts.deliveries(endpoint)[0]["last_error"] == "the host answered 503"
    hook.status = 204
    assert alerts.live_through(hours=2) == 1
    assert set(hook.ids) == {notification}
    assert len({each.body for each in hook.received}) == 1, "the same bytes every time"
    for each in hook.received:
        Webhook(secret).verify(each.body, each.headers)
    assert alerts.deliveries(endpoint)[0]["state"] == "delivered"
    assert alerts.state(endpoint)["failing_since"] is None


@pytest.mark.scenario(96)
def test_an_endpoint_that_is_down_for_three_days_is_disabled_and_the_owner_gets_an_email(alerts, hook, mail):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    alerts.endpoint("tn_1", "owner@example.com", event_types=["balance.low"])
    alerts.endpoint("tn_2", "other@example.com")
    hook.status = 500
    alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    alerts.pass_time(hours=71)
    alerts.deliver_due()
    assert alerts.state(endpoint)["status"] == "active"
    alerts.notify("tn_1", "spend:80")
    alerts.pass_time(hours=2)
    alerts.deliver_due()
    state = alerts.state(endpoint)
    assert state["status"] == "disabled"
    assert state["disabled_reason"].startswith("it accepted no message for 72 hours")
    assert [each["state"] for each in alerts.deliveries(endpoint)] == ["failed", "failed"]
    (message,) = mail.messages
    assert message["To"] == "owner@example.com"
    assert message["Subject"] == "[Tenora] Alerts to one of your endpoints have stopped"
    assert endpoint in message.get_content()
    assert alerts.live_through(hours=200) == 0
    alerts.notify("tn_1", "spend:100")
    assert len(alerts.deliveries(endpoint)) == 2, "a disabled endpoint gets no further deliveries"


def test_an_endpoint_that_refuses_one_message_and_accepts_others_stays_active(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    hook.status = 400
    alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    hook.status = 200
    alerts.notify("tn_1", "spend:80")
    alerts.deliver_due()
    hook.status = 400
    alerts.pass_time(hours=73)
    alerts.deliver_due()
    assert alerts.state(endpoint)["status"] == "active"
    assert [each["state"] for each in alerts.deliveries(endpoint)] == ["failed", "delivered"]


def test_gone_means_never_again(alerts, hook, mail):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    alerts.endpoint("tn_1", "owner@example.com", event_types=["balance.low"])
    hook.status = 410
    alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    alerts.pass_time(hours=80)
    assert (alerts.deliver_due(), len(hook.received)) == (0, 1)
    assert alerts.state(endpoint)["disabled_reason"] == "it asked not to be called again (410)"
    assert len(mail.messages) == 1


@pytest.mark.scenario(94)
def test_three_alerts_of_one_transaction_arrive_in_order_once_each(alerts, hook):
    alerts.endpoint("tn_1", hook.url)
    sent = [alerts.notify("tn_1", f"spend:{percent}", percent=percent) for percent in (50, 80, 100)]
    assert [alerts.notify("tn_1", f"spend:{percent}", percent=percent) for percent in (50, 80, 100)] == [None] * 3
    alerts.deliver_due()
    assert hook.ids == sent
    assert hook.running_max == 1


def test_a_rotation_signs_with_both_secrets_until_its_end(alerts, hook):
    endpoint, old = alerts.endpoint("tn_1", hook.url)
    new = BOX.new_secret()
    with unit_of_work(alerts.engine) as session:
        session.connection().exec_driver_sql(
            "UPDATE notification_endpoints SET previous_secret = signing_secret, signing_secret = %s,"
            " previous_secret_until = clock_timestamp() + interval '1 hour' WHERE id = %s",
            (BOX.seal(new, endpoint), endpoint),
        )
    alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    for secret in (old, new):
        Webhook(secret).verify(hook.received[0].body, hook.received[0].headers)
    alerts.pass_time(hours=2)
    alerts.notify("tn_1", "spend:80")
    alerts.deliver_due()
    Webhook(new).verify(hook.received[1].body, hook.received[1].headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(hook.received[1].body, hook.received[1].headers)


def test_a_tenant_whose_endpoints_all_hang_leaves_threads_to_other_tenants(alerts, hook):
    hook.hold.clear()
    for number in range(40):
        alerts.endpoint("tn_1", f"{hook.url}/{number}")
    for number in range(3):
        alerts.notify("tn_1", f"spend:{number}")
    with alerts.delivering():
        wait_until(lambda: hook.running == 4, what="the connections of one tenant")
        with webhook_receiver() as quick:
            for tenant in range(2, 6):
                alerts.endpoint(f"tn_{tenant}", quick.url)
                alerts.notify(f"tn_{tenant}", "spend:50")
            wait_until(lambda: len(quick.received) == 4, what="the messages of the others")
        assert (hook.running, hook.running_max) == (4, 4)
        hook.hold.set()
        wait_until(lambda: len(hook.received) == 120, what="the messages of the first")
    assert hook.running_max == 4


def test_a_runner_survives_an_attempt_that_raises_and_a_database_that_fails(alerts, hook):
    alerts.endpoint("tn_1", hook.url)
    failures = iter([OperationalError("SELECT", {}, OSError("down")), RuntimeError("tests")])

    class FailingQueue(DeliveryQueue):
        def claim(self, limit: int):
            if failure := next(failures, None):
                raise failure
            return super().claim(limit)

    broken = threading.Event()
    courier = alerts.courier()

    def attempt(delivery) -> SendResult:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("a defect")
        return courier.attempt(delivery)

    alerts.notify("tn_1", "spend:50")
    runner = DeliveryRunner(FailingQueue(alerts.engine, alerts.settings, alerts.clock), attempt, alerts.settings)
    with alerts.delivering(runner):
        assert broken.wait(30)
        alerts.pass_time(seconds=alerts.settings.notifications_lease_s + 1)
        wait_until(lambda: len(hook.received) == 1, what="the second attempt")


def test_a_delivery_that_was_queued_while_its_endpoint_was_disabled_ends_and_can_be_replayed(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    alerts.notify("tn_1", "spend:50")
    with unit_of_work(alerts.engine) as session:
        session.connection().exec_driver_sql(
            "UPDATE notification_endpoints SET status = 'disabled', disabled_reason = 'tests'"
        )
    assert alerts.deliver_due() == 0
    assert alerts.deliveries(endpoint)[0]["last_error"] == "the endpoint is disabled"
    assert hook.received == []


def test_a_secret_that_does_not_open_sends_nothing(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url, signing_secret=b"\x01 not sealed with any key of ours")
    alerts.notify("tn_1", "spend:50")
    assert alerts.deliver_due() == 1
    assert hook.received == []
    assert "signing secret" in alerts.deliveries(endpoint)[0]["last_error"]


def test_a_worker_that_is_killed_while_it_sends_loses_nothing(
    alerts, hook, postgres_settings, redis_settings, tmp_path
):
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": user_url(postgres_settings.postgres_dsn, database_roles.BILLING),
        "TENORA_REDIS_URL": user_url(redis_settings.redis_url, redis_acl.BILLING),
        "TENORA_DEPLOYMENT": "one-machine",
        "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK": "true",
        "TENORA_NOTIFICATIONS_KEY": "key-of-the-tests",
    }
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    hook.hold.clear()
    for percent in (50, 80, 100):
        alerts.notify("tn_1", f"spend:{percent}")
    with worker(environment, tmp_path / "log"):  # it is killed at the end of the block
        wait_until(lambda: hook.running == 1, timeout_s=60, what="the attempt")
    hook.hold.set()
    with alerts.engine.begin() as connection:  # as if the lease had ended
        connection.exec_driver_sql(
            "UPDATE notification_deliveries SET next_attempt_at = queued_at, leased_until = queued_at"
            " WHERE leased_until IS NOT NULL"
        )
    with worker(environment, tmp_path / "log") as second:
        wait_until(
            lambda: {each["state"] for each in alerts.deliveries(endpoint)} == {"delivered"},
            timeout_s=60,
            what="the deliveries",
        )
        second.terminate()
        assert second.wait(30) == 0
    first, again, *others = hook.ids
    assert first == again, "the message of the killed worker came twice, with one id"
    assert len({first, *others}) == 3
