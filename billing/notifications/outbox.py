"""Writes a notification and its deliveries in the caller's transaction, so that an alert exists exactly if its cause
does. It sends nothing: ``delivery`` does, after the commit.

A second notification with the same ``dedupe_key`` is not written. A transaction that uses the key of another one waits
until that has ended, at most for the session's lock timeout. So a transaction that notifies several tenants does so in
the order of their ids; two that do it in different orders would wait for each other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.notifications import metrics
from billing.notifications.event_types import ENDPOINT_DISABLED, EVENT_TYPES
from billing.notifications.models import Notification, NotificationDelivery, NotificationEndpoint
from billing.notifications.settings import DATA_BYTES_MAX, PENDING_PER_ENDPOINT_MAX
from billing.notifications.thresholds import Alert
from core.ids import new_id

QUEUE_FULL: Final = "the endpoint has too many undelivered messages; repair it and replay this one"


def notify(
    session: Session,
    *,
    tenant_id: str,
    event_type: str,
    data: Mapping[str, Any],  # JSON without fractions
    dedupe_key: str,
    endpoint_id: str | None = None,
) -> str | None:
    """Queue a notification for the tenant's endpoints that want this type, or for one endpoint alone. Returns its id,
    or None if the tenant has one with this ``dedupe_key``. Raises ValueError for data that the type does not allow.
    """
    body = _checked(event_type, data)
    written = session.execute(
        insert(Notification)
        .values(
            id=new_id("ntf"),
            tenant_id=tenant_id,
            event_type=event_type,
            data=body,
            dedupe_key=dedupe_key,
            created_at=sa.func.clock_timestamp(),
        )
        .on_conflict_do_nothing(index_elements=["tenant_id", "dedupe_key"])
        .returning(col(Notification.id), col(Notification.created_at))
    ).first()
    if written is None:
        return None
    metrics.NOTIFICATIONS.labels(event_type).inc()
    recipients = [endpoint_id] if endpoint_id else _recipients(session, tenant_id, event_type)
    queue_deliveries(session, tenant_id, [(written.id, each) for each in recipients], now=written.created_at)
    notification_id: str = written.id
    return notification_id


def raise_alerts(session: Session, tenant_id: str, alerts: Iterable[Alert]) -> int:
    """Write the alerts of one tenant, in order. Returns how many of them are new."""
    written = [
        notify(session, tenant_id=tenant_id, event_type=each.event_type, data=each.data, dedupe_key=each.dedupe_key)
        for each in alerts
    ]
    return len([each for each in written if each is not None])


def queue_deliveries(session: Session, tenant_id: str, pairs: Sequence[tuple[str, str]], *, now: datetime) -> None:
    """Add a delivery for each pair of notification and endpoint that has none. They are due in this order.

    A delivery above ``PENDING_PER_ENDPOINT_MAX`` is written as failed.
    """
    if not pairs:
        return
    waiting = pending(session, {endpoint_id for _, endpoint_id in pairs})
    rows = []
    for position, (notification_id, endpoint_id) in enumerate(pairs):
        full = waiting[endpoint_id] >= PENDING_PER_ENDPOINT_MAX
        if full:
            metrics.QUEUE_FULL.inc()
        waiting[endpoint_id] += 1
        rows.append(
            {
                "id": new_id("ndl"),
                "notification_id": notification_id,
                "endpoint_id": endpoint_id,
                "tenant_id": tenant_id,
                "state": "failed" if full else "pending",
                "last_error": QUEUE_FULL if full else None,
                "attempts": 0,
                "attempts_before": 0,
                "queued_at": now,
                "next_attempt_at": now + timedelta(microseconds=position),
                "created_at": now,
            }
        )
    session.execute(insert(NotificationDelivery).values(rows).on_conflict_do_nothing())


def _recipients(session: Session, tenant_id: str, event_type: str) -> Sequence[str]:
    """Active endpoints that want the type. Every e-mail address hears of a disabled endpoint."""
    chosen = col(NotificationEndpoint.event_types)
    wants = (sa.literal(event_type) == sa.any_(chosen)) | (sa.func.cardinality(chosen) == 0)
    if event_type == ENDPOINT_DISABLED:
        wants |= col(NotificationEndpoint.kind) == "email"
    found = select(NotificationEndpoint.id).where(
        NotificationEndpoint.tenant_id == tenant_id, NotificationEndpoint.status == "active", wants
    )
    return session.exec(found.order_by(col(NotificationEndpoint.id))).all()


def pending(session: Session, endpoint_ids: set[str]) -> Counter[str]:
    """What waits for each endpoint."""
    waiting = (
        select(NotificationDelivery.endpoint_id, sa.func.count())
        .where(col(NotificationDelivery.endpoint_id).in_(sorted(endpoint_ids)), NotificationDelivery.state == "pending")
        .group_by(col(NotificationDelivery.endpoint_id))
    )
    return Counter(dict(session.exec(waiting).all()))


def _checked(event_type: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as plain JSON. Raises ValueError."""
    known = EVENT_TYPES.get(event_type)
    if known is None:
        raise ValueError(f"event_type is {event_type!r}; add it to event_types.py")
    if missing := [field for field in known.fields if field not in data]:
        raise ValueError(f"data of {event_type} lacks {', '.join(missing)}")
    encoded = msgspec.json.encode(data)
    if len(encoded) > DATA_BYTES_MAX:
        raise ValueError(f"data of {event_type} has {len(encoded)} bytes; at most {DATA_BYTES_MAX} are allowed")
    if b"\\u0000" in encoded:
        raise ValueError(f"data of {event_type} has a NUL character, which Postgres cannot store")
    plain: dict[str, Any] = msgspec.json.decode(encoded)
    _refuse_fractions(event_type, plain)
    return plain


def _refuse_fractions(event_type: str, value: object) -> None:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_fractions(event_type, each)
    elif value is not None and not isinstance(value, bool | int | str):
        raise ValueError(f"data of {event_type} has the fraction {value}; money is integer nanodollars or cents")
