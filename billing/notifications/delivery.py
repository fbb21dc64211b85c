"""Delivers notifications from threads of the billing worker: claim in one transaction, send outside of any, record in
another. Delivery fails open for billing: whatever happens here, usage is recorded as before.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from billing.notifications import metrics
from billing.notifications.addresses import HostLookup
from billing.notifications.delivery_queue import ClaimedDelivery, DeliveryQueue
from billing.notifications.emails import EmailSender, compose
from billing.notifications.event_types import ENDPOINT_CONFIRMATION
from billing.notifications.retries import SendResult
from billing.notifications.settings import DeliverySettings, NotificationSettings, SmtpSettings
from billing.notifications.signing_secrets import SecretBox, SecretUnreadable
from billing.notifications.webhook_sender import WebhookSender, signed_headers
from core import clock, db
from core.loops import Loop
from core.settings import PostgresSettings

_IDLE_S: Final = 2  # a message that is sent again after its pause
_OUTAGES: Final = (DBAPIError, PoolTimeout)
_CONNECTIONS: Final = 4
_log = structlog.get_logger()


class Courier:
    """Makes the message of one delivery and sends it. It touches no database."""

    def __init__(self, webhooks: WebhookSender, emails: EmailSender, box: SecretBox, *, sender: str | None) -> None:
        self._webhooks = webhooks
        self._emails = emails
        self._box = box
        self._sender = sender

    def attempt(self, delivery: ClaimedDelivery) -> SendResult:
        """Send once. Never raises for what the receiver or the network does."""
        try:
            with metrics.ATTEMPT_SECONDS.labels(delivery.kind).time():
                return self._email(delivery) if delivery.kind == "email" else self._webhook(delivery)
        except SecretUnreadable as unreadable:
            _log.error("signing secret unreadable", endpoint=delivery.endpoint_id, reason=unreadable.message)
            return SendResult(error="the signing secret cannot be read; the operator was informed")

    def _webhook(self, delivery: ClaimedDelivery) -> SendResult:
        body = webhook_body(delivery)
        headers = signed_headers(
            message_id=delivery.notification_id,
            at=clock.now(),
            body=body,
            secrets=[self._box.open(sealed, delivery.endpoint_id) for sealed in delivery.sealed_secrets],
        )
        return self._webhooks.send(delivery.address, headers, body, tenant_id=delivery.tenant_id)

    def _email(self, delivery: ClaimedDelivery) -> SendResult:
        if self._sender is None:
            _log.warning("no sender for e-mail; set TENORA_NOTIFICATIONS_EMAIL_FROM", delivery=delivery.id)
            return SendResult(error="e-mail is not set up at this installation")
        data = delivery.data
        if delivery.event_type == ENDPOINT_CONFIRMATION:
            data = {**data, "code": self._box.confirmation_code(delivery.endpoint_id, delivery.address)}
        message = compose(
            notification_id=delivery.notification_id,
            tenant_id=delivery.tenant_id,
            event_type=delivery.event_type,
            data=data,
            sender=self._sender,
            recipient=delivery.address,
            clock=clock.now,
        )
        return self._emails.send(message)


def webhook_body(delivery: ClaimedDelivery) -> str:
    """The same bytes for every attempt: type, time and data as Standard Webhooks recommends, and the tenant."""
    payload = {
        "type": delivery.event_type,
        "timestamp": _utc(delivery.created_at),
        "tenant_id": delivery.tenant_id,
        "data": delivery.data,
    }
    return msgspec.json.encode(payload).decode()


class DeliveryRunner:
    """Claims due deliveries and hands each to a thread."""

    def __init__(
        self,
        queue: DeliveryQueue,
        attempt: Callable[[ClaimedDelivery], SendResult],
        settings: DeliverySettings,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """``ended`` is called when a thread is free again, in which case the loop may go on."""
        self._queue = queue
        self._attempt = attempt
        self._settings = settings
        self._ended = ended
        self._free = threading.Semaphore(settings.notifications_threads)
        self._threads = ThreadPoolExecutor(settings.notifications_threads, thread_name_prefix="notification")
        self.loop = Loop("notifications", self.run_once, 0, _IDLE_S)

    def run_once(self) -> list["Future[None]"]:
        """Claim as many deliveries as there are free threads, and start them."""
        free = 0
        while free < self._settings.notifications_threads and self._free.acquire(blocking=False):
            free += 1
        claimed: list[ClaimedDelivery] = []
        try:
            claimed = self._queue.claim(free) if free else []
        finally:
            for _ in range(free - len(claimed)):
                self._free.release()
        return [self._threads.submit(self._deliver, each) for each in claimed]

    def wait(self) -> None:
        """Wait for running attempts, each of which is bounded in time. Nothing is delivered after it."""
        self._threads.shutdown()

    def _deliver(self, delivery: ClaimedDelivery) -> None:
        try:
            self._queue.record(delivery, self._attempt(delivery))
        except _OUTAGES as error:  # the lease ends, and the delivery is attempted again
            _log.warning("result of a delivery not recorded", delivery=delivery.id, cause=_cause(error))
        except Exception:  # noqa: BLE001 - the same for a defect
            _log.error("delivery failed by a defect", delivery=delivery.id, exc_info=True)
        finally:
            self._free.release()
            self._ended()


def runner_of(postgres: PostgresSettings, *, ended: Callable[[], None]) -> DeliveryRunner:
    """The runner of the billing worker, from the environment. It has a few database connections of its own."""
    shared, settings = NotificationSettings(), DeliverySettings()
    engine = db.connect(postgres.model_copy(update={"postgres_pool_max": _CONNECTIONS}))
    hosts = HostLookup(allow_loopback=shared.notifications_allow_loopback, timeout_ms=shared.notifications_resolve_ms)
    webhooks = WebhookSender(
        hosts,
        timeout_ms=settings.notifications_timeout_ms,
        response_bytes_max=settings.notifications_response_bytes_max,
    )
    emails, box = EmailSender(SmtpSettings()), SecretBox(shared.notification_keys)
    courier = Courier(webhooks, emails, box, sender=shared.notifications_email_from)
    return DeliveryRunner(DeliveryQueue(engine, settings), courier.attempt, settings, ended)


def _cause(error: Exception) -> str:
    """The driver's words, without SQLAlchemy's copy of the statement and its parameters."""
    return str(getattr(error, "orig", error))[:500]


def _utc(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
