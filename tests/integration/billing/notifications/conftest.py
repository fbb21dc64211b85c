"""A stage for notifications: a real Postgres, receivers on loopback, and a clock that a test moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing.notifications.addresses import HostLookup
from billing.notifications.delivery import Courier, DeliveryRunner
from billing.notifications.delivery_queue import DeliveryQueue
from billing.notifications.emails import EmailSender
from billing.notifications.models import NotificationEndpoint
from billing.notifications.outbox import notify
from billing.notifications.settings import DeliverySettings, SmtpSettings
from billing.notifications.signing_secrets import SecretBox
from billing.notifications.webhook_sender import WebhookSender
from core.db import database_now, unit_of_work
from core.ids import new_id
from tests.fixtures.loops import running_loops
from tests.fixtures.notifications.receivers import MailServer, WebhookReceiver, mail_server, webhook_receiver

BOX = SecretBox([b"key-of-the-tests"])
SPEND = {
    "scope": "the account",
    "percent": 50,
    "spent_nanos": 5_000_000_000,
    "limit_nanos": 10_000_000_000,
    "period_start": "2026-11-01T00:00:00Z",
    "period_end": "2026-12-01T00:00:00Z",
}


class NotificationStage:
    def __init__(self, engine: sa.Engine, smtp_port: int) -> None:
        self.engine = engine
        self.settings = DeliverySettings()
        self.offset = timedelta()
        self.hosts = HostLookup(allow_loopback=True, timeout_ms=5_000)
        self.smtp = SmtpSettings(smtp_host="127.0.0.1", smtp_port=smtp_port, smtp_security="none")
        self.queue = DeliveryQueue(engine, self.settings, self.clock)
        self.runner = DeliveryRunner(self.queue, self.courier().attempt, self.settings)

    def courier(self, *, sender: str | None = "billing@tenora.example", timeout_ms: int = 5_000) -> Courier:
        webhooks = WebhookSender(self.hosts, timeout_ms=timeout_ms, response_bytes_max=1_000)
        return Courier(webhooks, EmailSender(self.smtp), BOX, sender=sender)

    def clock(self, session: Session) -> datetime:
        return database_now(session) + self.offset

    def endpoint(self, tenant_id: str, address: str, **changes: Any) -> tuple[str, str]:
        """An active endpoint; returns its id and its signing secret."""
        endpoint_id, secret = new_id("nep"), BOX.new_secret()
        kind = "webhook" if "://" in address else "email"
        with unit_of_work(self.engine) as session:
            now = database_now(session)
            values = {
                "event_types": [],
                "status": "active",
                "signing_secret": BOX.seal(secret, endpoint_id) if kind == "webhook" else None,
            }
            session.add(
                NotificationEndpoint(
                    id=endpoint_id,
                    tenant_id=tenant_id,
                    kind=kind,
                    address=address,
                    created_at=now,
                    updated_at=now,
                    **(values | changes),
                )
            )
        return endpoint_id, secret

    def notify(self, tenant_id: str, key: str, event_type: str = "spend.threshold_reached", **data: Any) -> str | None:
        with unit_of_work(self.engine) as session:
            return notify(session, tenant_id=tenant_id, event_type=event_type, data=SPEND | data, dedupe_key=key)

    @contextmanager
    def delivering(self, *runners: DeliveryRunner) -> Iterator[None]:
        """Deliver in threads, by the stage's runner or by others, as the billing worker does."""
        runners = runners or (self.runner,)
        with running_loops(self.engine, *(each.run_once for each in runners)):
            yield
        for each in runners:
            each.wait()

    def deliver_due(self) -> int:
        """Deliver until nothing is due at the stage's time; returns the number of attempts."""
        attempts = 0
        while running := self.runner.run_once():
            attempts += len(running)
            for each in running:
                each.result(60)
        return attempts

    def pass_time(self, **length: float) -> None:
        self.offset += timedelta(**length)

    def live_through(self, **length: float) -> int:
        """Move time on to each next attempt, as a worker that polls would see it; returns the number of attempts."""
        end, attempts = self.offset + timedelta(**length), 0
        while True:
            attempts += self.deliver_due()
            due = self.row("SELECT min(next_attempt_at) - clock_timestamp() AS wait FROM notification_deliveries"
                           " WHERE state = 'pending'")["wait"]  # fmt: skip
            if due is None or due > end:
                self.offset = end
                return attempts
            self.offset = max(self.offset, due + timedelta(milliseconds=1))

    def row(self, sql: str, **parameters: Any):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).mappings().one()

    def rows(self, sql: str, **parameters: Any):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).mappings().all()

    def deliveries(self, endpoint_id: str):
        return self.rows(
            "SELECT * FROM notification_deliveries WHERE endpoint_id = :e ORDER BY created_at", e=endpoint_id
        )

    def state(self, endpoint_id: str):
        return self.row("SELECT * FROM notification_endpoints WHERE id = :e", e=endpoint_id)


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def alerts(engine, mail) -> Iterator[NotificationStage]:
    stage = NotificationStage(engine, mail.port)
    yield stage
    stage.hosts.close()
