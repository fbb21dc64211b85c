"""The queue of deliveries in Postgres: claims what is due, and records how an attempt ended. Each is one transaction,
and nothing is sent within it.

A claim is a lease with a fence. If a worker dies while it sends, the delivery becomes due when the lease ends, so a
message may arrive twice, with the same id; it is never lost. Rows are locked in the order endpoint, delivery.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Any, Final

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from billing.notifications import metrics
from billing.notifications.addresses import shown_address
from billing.notifications.event_types import ENDPOINT_DISABLED
from billing.notifications.models import NotificationDelivery, NotificationEndpoint
from billing.notifications.outbox import notify
from billing.notifications.retries import SendResult, next_attempt
from billing.notifications.settings import DeliverySettings
from core import leases
from core.db import DatabaseClock, database_now, unit_of_work

UNDELIVERABLE: Final = ("disabled", "deleted")
_ERROR_LENGTH_MAX: Final = 500
_log = structlog.get_logger()
_chance = SystemRandom()

# Endpoints with something due and a free connection, the longest waiting first. What is leased is few rows.
_DUE: Final = sa.text(
    """
    WITH running AS MATERIALIZED (
        SELECT endpoint_id, tenant_id FROM notification_deliveries WHERE leased_until > :now
    ), due AS (
        SELECT endpoint_id, tenant_id, min(next_attempt_at) AS oldest FROM notification_deliveries
        WHERE state = 'pending' AND next_attempt_at <= :now GROUP BY endpoint_id, tenant_id
    ), counted AS (
        SELECT due.*, (SELECT count(*) FROM running WHERE running.endpoint_id = due.endpoint_id) AS of_endpoint,
            (SELECT count(*) FROM running WHERE running.tenant_id = due.tenant_id) AS of_tenant
        FROM due
    )
    SELECT * FROM counted WHERE of_endpoint < :endpoint_max AND of_tenant < :tenant_max ORDER BY oldest LIMIT :endpoints
    """
)


# The oldest due deliveries of each endpoint, up to its free connections. The endpoint's lock guards its deliveries.
_LEASE: Final = sa.text(
    """
    WITH chosen AS (
        SELECT oldest.id FROM unnest(CAST(:endpoints AS text[]), CAST(:rooms AS int[])) AS wanted (endpoint_id, room),
            LATERAL (
                SELECT id FROM notification_deliveries AS waiting
                WHERE waiting.endpoint_id = wanted.endpoint_id AND state = 'pending' AND next_attempt_at <= :now
                ORDER BY next_attempt_at, id LIMIT wanted.room
            ) AS oldest
    )
    UPDATE notification_deliveries AS delivery
    SET attempts = delivery.attempts + 1, leased_until = :until, next_attempt_at = :until
    FROM chosen, notifications AS said
    WHERE delivery.id = chosen.id AND said.id = delivery.notification_id
    RETURNING delivery.id, delivery.attempts, delivery.attempts - delivery.attempts_before AS tries, delivery.tenant_id,
        delivery.endpoint_id, said.id AS notification_id, said.event_type, said.data, said.created_at
    """
)


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery that this worker may attempt until its lease ends. ``attempts`` counts this attempt, over all
    replays; ``tries`` only since the last one. Secrets are still encrypted.
    """

    id: str
    attempts: int
    tries: int
    tenant_id: str
    endpoint_id: str
    kind: str
    address: str
    sealed_secrets: tuple[bytes, ...]
    notification_id: str
    event_type: str
    data: dict[str, Any]  # JSON
    created_at: datetime


class DeliveryQueue:
    """The queue as one worker sees it. ``clock`` is Postgres's, except in tests that move time."""

    def __init__(self, engine: Engine, settings: DeliverySettings, clock: DatabaseClock = database_now) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock

    def claim(self, limit: int) -> list[ClaimedDelivery]:
        """Lease at most ``limit`` due deliveries, for each endpoint and each tenant at most as many as may run at the
        same time. For a tenant this is exact within one worker only.
        """
        with unit_of_work(self._engine) as session:
            now = self._clock(session)
            endpoint_max = self._settings.notifications_endpoint_connections_max
            tenant_max = self._settings.notifications_tenant_connections_max
            bounds = {"endpoint_max": endpoint_max, "tenant_max": tenant_max, "endpoints": limit}
            due = session.execute(_DUE, {"now": now} | bounds).all()
            metrics.OLDEST_DUE_SECONDS.set(max((now - due[0].oldest).total_seconds(), 0) if due else 0)
            of_tenant = Counter({row.tenant_id: row.of_tenant for row in due})
            locked = _locked(session, [row.endpoint_id for row in due], skip_locked=True)
            of_endpoint = self._running(session, locked, now)
            rooms: dict[str, int] = {}
            for endpoint in locked:
                if endpoint.status in UNDELIVERABLE:  # queued while it was disabled
                    fail_pending(session, endpoint.id, f"the endpoint is {endpoint.status}")
                    continue
                room = min(
                    endpoint_max - of_endpoint[endpoint.id],
                    tenant_max - of_tenant[endpoint.tenant_id],
                    limit - sum(rooms.values()),
                )
                if room > 0:
                    rooms[endpoint.id] = room
                    of_tenant[endpoint.tenant_id] += room
            return self._lease(session, {each.id: each for each in locked}, rooms, now) if rooms else []

    def record(self, delivery: ClaimedDelivery, attempt: SendResult) -> None:
        """Write down how an attempt ended. A result that comes after another worker's attempt began is dropped."""
        with unit_of_work(self._engine) as session:
            now = self._clock(session)
            endpoint = _locked(session, [delivery.endpoint_id], skip_locked=False)[0]
            mine = select(NotificationDelivery).where(NotificationDelivery.id == delivery.id)
            row = leases.held(session, mine, delivery.attempts)
            if row is None:
                metrics.LATE_RESULTS.inc()
                return
            if attempt.error is None:
                self._delivered(row, endpoint, now)
            elif row.state == "pending":
                self._failed(session, row, endpoint, delivery, attempt, now)

    def _delivered(self, row: NotificationDelivery, endpoint: NotificationEndpoint, now: datetime) -> None:
        """Also if the endpoint was disabled meanwhile: the message has arrived."""
        row.state, row.delivered_at, row.leased_until, row.last_error = "delivered", now, None, None
        endpoint.last_success_at, endpoint.failing_since = now, None
        metrics.DELIVERIES.labels(endpoint.kind, "delivered").inc()

    def _failed(
        self,
        session: Session,
        row: NotificationDelivery,
        endpoint: NotificationEndpoint,
        delivery: ClaimedDelivery,
        attempt: SendResult,
        now: datetime,
    ) -> None:
        row.leased_until, row.last_error = None, (attempt.error or "")[:_ERROR_LENGTH_MAX]
        endpoint.failing_since = endpoint.failing_since or now
        again = next_attempt(
            delivery.tries,
            now=now,
            queued_at=row.queued_at,
            retry_after_s=attempt.retry_after_s,
            chance_permille=_chance.randint(0, leases.PERMILLE),
            settings=self._settings,
        )
        if again is not None and not attempt.gone:
            row.next_attempt_at = again
            metrics.DELIVERIES.labels(endpoint.kind, "retried").inc()
            return
        row.state = "failed"
        metrics.DELIVERIES.labels(endpoint.kind, "failed").inc()
        silent = endpoint.last_success_at is None or endpoint.last_success_at < row.queued_at
        if endpoint.status == "active" and (attempt.gone or silent):
            reason = (
                "it asked not to be called again (410)"
                if attempt.gone
                else f"it accepted no message for {self._settings.notifications_retry_s // 3600} hours; "
                f"the last error was: {row.last_error}"
            )
            session.flush()
            disable(session, endpoint, reason, now)

    def _lease(
        self, session: Session, endpoints: Mapping[str, NotificationEndpoint], rooms: Mapping[str, int], now: datetime
    ) -> list[ClaimedDelivery]:
        until = now + timedelta(seconds=self._settings.notifications_lease_s)
        wanted = {"endpoints": list(rooms), "rooms": list(rooms.values()), "now": now, "until": until}
        return [
            ClaimedDelivery(
                **row,
                kind=endpoints[row["endpoint_id"]].kind,
                address=endpoints[row["endpoint_id"]].address,
                sealed_secrets=_sealed_secrets(endpoints[row["endpoint_id"]], now),
            )
            for row in session.execute(_LEASE, wanted).mappings()
        ]

    def _running(self, session: Session, endpoints: Sequence[NotificationEndpoint], now: datetime) -> Counter[str]:
        """Running attempts by endpoint, counted under the endpoints' locks."""
        running = (
            select(NotificationDelivery.endpoint_id, sa.func.count())
            .where(
                col(NotificationDelivery.endpoint_id).in_([each.id for each in endpoints]),
                col(NotificationDelivery.leased_until) > now,
            )
            .group_by(col(NotificationDelivery.endpoint_id))
        )
        return Counter(dict(session.exec(running).all()))


def disable(session: Session, endpoint: NotificationEndpoint, reason: str, now: datetime) -> None:
    """Stop deliveries to a locked endpoint, and inform the tenant by its other endpoints and every e-mail address."""
    endpoint.status, endpoint.disabled_reason, endpoint.updated_at = "disabled", reason, now
    session.flush()
    fail_pending(session, endpoint.id, "the endpoint is disabled")
    metrics.DISABLED.labels(endpoint.kind).inc()
    _log.warning("notification endpoint disabled", endpoint=endpoint.id, tenant=endpoint.tenant_id, reason=reason)
    notify(
        session,
        tenant_id=endpoint.tenant_id,
        event_type=ENDPOINT_DISABLED,
        data={
            "endpoint_id": endpoint.id,
            "address": shown_address(endpoint.kind, endpoint.address),
            "reason": reason,
        },
        dedupe_key=f"endpoint.disabled:{endpoint.id}:{now.isoformat()}",
    )


def fail_pending(session: Session, endpoint_id: str, reason: str) -> None:
    """End every pending delivery of a locked endpoint. Each can be replayed."""
    session.execute(
        sa.update(NotificationDelivery)
        .where(col(NotificationDelivery.endpoint_id) == endpoint_id, col(NotificationDelivery.state) == "pending")
        .values(state="failed", leased_until=None, last_error=reason)
    )


def _locked(session: Session, endpoint_ids: list[str], *, skip_locked: bool) -> list[NotificationEndpoint]:
    """The endpoints, in this order, without those that another transaction holds if they are skipped. The lock leaves
    ``notify`` free to add deliveries.
    """
    if not endpoint_ids:
        return []
    found = select(NotificationEndpoint).where(col(NotificationEndpoint.id).in_(endpoint_ids))
    order = {endpoint_id: position for position, endpoint_id in enumerate(endpoint_ids)}
    rows = session.exec(found.with_for_update(key_share=True, skip_locked=skip_locked)).all()
    return sorted(rows, key=lambda row: order[row.id])


def _sealed_secrets(endpoint: NotificationEndpoint, now: datetime) -> tuple[bytes, ...]:
    """The current secret and, during a rotation, the one before it."""
    previous_counts = endpoint.previous_secret_until is not None and endpoint.previous_secret_until > now
    both = (endpoint.signing_secret, endpoint.previous_secret if previous_counts else None)
    return tuple(each for each in both if each is not None)
