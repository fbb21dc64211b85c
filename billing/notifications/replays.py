"""Lists deliveries and queues them again: one of them, or all that an endpoint has missed since an instant.

A replayed message has the id and the body of the first attempt, so a receiver recognizes what it has already.
"""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from billing.notifications.endpoints import find, require_active
from billing.notifications.event_types import SUBSCRIBABLE
from billing.notifications.models import Notification, NotificationDelivery
from billing.notifications.outbox import pending, queue_deliveries
from billing.notifications.settings import PENDING_PER_ENDPOINT_MAX, REPLAY_MAX
from billing.notifications.views import DeliveryState, DeliveryView, QueuedAgain
from core.db import database_now
from core.errors import NotFound
from core.struct_types import view_of

# They are due in the order of their notifications.
_QUEUE_AGAIN: Final = sa.text(
    """
    UPDATE notification_deliveries AS delivery
    SET state = 'pending', queued_at = :now, attempts_before = attempts, last_error = NULL,
        next_attempt_at = CAST(:now AS timestamptz) + wanted.position * interval '1 microsecond'
    FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS wanted (id, position)
    WHERE delivery.notification_id = wanted.id AND endpoint_id = :endpoint_id AND state <> 'delivered'
    """
)


def list_deliveries(
    session: Session,
    *,
    tenant_id: str,
    endpoint_id: str | None,
    notification_id: str | None = None,
    state: DeliveryState | None = None,
    after: str | None = None,
    limit: int,
) -> list[DeliveryView]:
    """The tenant's deliveries, newest first. ``after`` is the last id of the previous page."""
    found = _of(tenant_id).order_by(col(NotificationDelivery.id).desc()).limit(limit)
    if endpoint_id is not None:
        found = found.where(NotificationDelivery.endpoint_id == endpoint_id)
    if notification_id is not None:
        found = found.where(NotificationDelivery.notification_id == notification_id)
    if state is not None:
        found = found.where(NotificationDelivery.state == state)
    if after is not None:
        found = found.where(NotificationDelivery.id < after)
    return [_view(row, notification) for row, notification in session.exec(found)]


def get_delivery(session: Session, *, tenant_id: str, delivery_id: str) -> DeliveryView:
    """One of the tenant's deliveries. Raises NotFound."""
    return _view(*_find(session, tenant_id=tenant_id, delivery_id=delivery_id))


def replay(session: Session, *, tenant_id: str, delivery_id: str) -> DeliveryView:
    """Queue one delivery again, also one that was delivered. One that is pending stays as it is. Raises NotFound, and
    Conflict unless its endpoint is active.
    """
    row, notification = _find(session, tenant_id=tenant_id, delivery_id=delivery_id)
    require_active(find(session, tenant_id=tenant_id, endpoint_id=row.endpoint_id, lock=True))
    session.refresh(row, with_for_update=True)
    if row.state != "pending":
        now = database_now(session)
        row.state, row.queued_at, row.next_attempt_at, row.attempts_before = "pending", now, now, row.attempts
        row.delivered_at = row.last_error = None
        session.flush()
    return _view(row, notification)


def replay_missed(session: Session, *, tenant_id: str, endpoint_id: str, since: datetime) -> QueuedAgain:
    """Queue all failed deliveries of an endpoint of notifications since an instant, and those notifications of its
    types for which it has no delivery, oldest first and at most ``REPLAY_MAX``. Raises NotFound, and Conflict unless
    the endpoint is active.
    """
    endpoint = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id, lock=True)
    require_active(endpoint)
    wanted = endpoint.event_types or SUBSCRIBABLE
    missed = (
        select(Notification.id, NotificationDelivery.id)
        .outerjoin(
            NotificationDelivery,
            (col(NotificationDelivery.notification_id) == Notification.id)
            & (col(NotificationDelivery.endpoint_id) == endpoint_id),
        )
        .where(
            Notification.tenant_id == tenant_id,
            col(Notification.created_at) >= since,
            col(Notification.event_type).in_(SUBSCRIBABLE),
            (col(NotificationDelivery.state) == "failed")
            | (col(NotificationDelivery.id).is_(None) & col(Notification.event_type).in_(wanted)),
        )
        .order_by(col(Notification.created_at), col(Notification.id))
    )
    room = min(REPLAY_MAX, PENDING_PER_ENDPOINT_MAX - pending(session, {endpoint_id})[endpoint_id])
    found = session.exec(missed.limit(max(room, 0) + 1)).all()
    taken = found[: max(room, 0)]
    now = database_now(session)
    unheard = [(each, endpoint_id) for each, delivery_id in taken if delivery_id is None]
    queue_deliveries(session, tenant_id, unheard, now=now)
    session.execute(_QUEUE_AGAIN, {"ids": [each for each, _ in taken], "endpoint_id": endpoint_id, "now": now})
    return QueuedAgain(queued=len(taken), more=len(found) > len(taken))


def _of(tenant_id: str) -> Select[NotificationDelivery, Notification]:
    joined = select(NotificationDelivery, Notification).join(
        Notification, col(Notification.id) == NotificationDelivery.notification_id
    )
    return joined.where(NotificationDelivery.tenant_id == tenant_id)


def _find(session: Session, *, tenant_id: str, delivery_id: str) -> tuple[NotificationDelivery, Notification]:
    found = _of(tenant_id).where(NotificationDelivery.id == delivery_id)
    row = session.exec(found).first() if delivery_id.isascii() else None
    if row is None:
        raise NotFound("Notification delivery not found.", code="notification_delivery_not_found")
    return row


def _view(row: NotificationDelivery, notification: Notification) -> DeliveryView:
    return view_of(
        row,
        DeliveryView,
        event_type=notification.event_type,
        data=notification.data,
        next_attempt_at=row.next_attempt_at if row.state == "pending" else None,
    )
