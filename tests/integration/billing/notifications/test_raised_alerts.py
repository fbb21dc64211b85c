"""From a change of spend to messages at the tenant: once each, in order, also when two workers see the same change."""

import os
import threading
from datetime import UTC, datetime

import pytest

from billing.notifications.outbox import raise_alerts
from billing.notifications.thresholds import spend_alerts
from control_plane import database_roles
from core import redis_acl
from core.db import unit_of_work
from core.periods import Period
from tests.conftest import wait_until
from tests.fixtures import fork_server
from tests.fixtures.billing_worker import worker
from tests.fixtures.least_privilege import user_url

DOLLAR = 1_000_000_000
NOVEMBER = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


def raised(alerts, before: int, after: int) -> int:
    found = spend_alerts(
        scope_id="tn_1:month", scope="the account", period=NOVEMBER,
        before_nanos=before * DOLLAR, after_nanos=after * DOLLAR, limit_nanos=100 * DOLLAR,
    )  # fmt: skip
    with unit_of_work(alerts.engine) as session:
        return raise_alerts(session, "tn_1", found)


@pytest.mark.scenario(94)
def test_one_record_over_three_thresholds_sends_three_messages_in_order_once_each(alerts, hook, mail):
    alerts.endpoint("tn_1", hook.url)
    alerts.endpoint("tn_1", "owner@example.com")
    assert raised(alerts, 40, 100) == 3
    assert raised(alerts, 40, 100) == 0, "the record again"
    alerts.deliver_due()
    assert [f'"percent":{percent}' in each.body.replace(" ", "") for percent, each in
            zip((50, 80, 100), hook.received, strict=True)] == [True] * 3  # fmt: skip
    assert [each["Subject"].split()[1] for each in mail.messages] == ["50", "80", "100"]


def test_two_workers_that_see_the_same_change_raise_each_alert_once(alerts, hook):
    alerts.endpoint("tn_1", hook.url)
    barrier, counts = threading.Barrier(2), []

    def run() -> None:
        barrier.wait(30)
        counts.append(raised(alerts, 0, 100))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sum(counts) == 3
    alerts.deliver_due()
    assert len(hook.received) == 3


def test_the_billing_worker_delivers_with_its_own_role_and_stops_when_asked(
    alerts, hook, mail, postgres_settings, redis_settings, tmp_path
):
    """The whole process, with the privileges that it has in production."""
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": user_url(postgres_settings.postgres_dsn, database_roles.BILLING),
        "TENORA_REDIS_URL": user_url(redis_settings.redis_url, redis_acl.BILLING),
        "TENORA_DEPLOYMENT": "one-machine",
        "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK": "true",
        "TENORA_NOTIFICATIONS_KEY": "key-of-the-tests",
        "TENORA_NOTIFICATIONS_EMAIL_FROM": "billing@tenora.example",
        "TENORA_NOTIFICATIONS_RETRY_FIRST_MS": "20",
        "TENORA_SMTP_HOST": "127.0.0.1",
        "TENORA_SMTP_PORT": str(mail.port),
        "TENORA_SMTP_SECURITY": "none",
    }
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    alerts.endpoint("tn_1", "owner@example.com")
    hook.status = 503
    with worker(environment, tmp_path / "log") as process:
        raised(alerts, 40, 50)
        wait_until(lambda: len(hook.received) >= 2 and mail.messages, timeout_s=60, what="attempts")
        hook.status = 200
        wait_until(lambda: alerts.deliveries(endpoint)[0]["state"] == "delivered", what="the delivery")
        hook.status = 410
        raised(alerts, 50, 80)
        wait_until(lambda: alerts.state(endpoint)["status"] == "disabled", what="the disabled endpoint")
        wait_until(lambda: len(mail.messages) == 3, what="the owner's message")
        process.terminate()
        assert process.wait(30) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_worker_refuses_to_start_with_loopback_in_production(postgres_settings, redis_settings):
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": user_url(postgres_settings.postgres_dsn, database_roles.BILLING),
        "TENORA_REDIS_URL": user_url(redis_settings.redis_url, redis_acl.BILLING),
        "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK": "true",
    }
    done = fork_server.run("billing", "worker", env=environment)
    assert done.returncode != 0
    assert "TENORA_NOTIFICATIONS_ALLOW_LOOPBACK is true, which production refuses" in done.stderr


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
    raised(alerts, 40, 100)
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
