"""Stores Stripe's events, each once, and hands them to the handler. The route for webhooks only stores."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.payments import metrics
from billing.payments.alarms import raise_alarm
from billing.payments.models import StripeEventRow, StripeEventsListed
from billing.stripe.errors import StripeLookupInconclusive
from billing.stripe.objects import StripeEvent
from core import leases
from core.db import database_now
from core.errors import Conflict, NotFound

HANDLED_TYPES: Final = (
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    "checkout.session.async_payment_failed",
    "checkout.session.expired",
    "payment_intent.succeeded",
    "payment_intent.canceled",
    "setup_intent.succeeded",
    "payment_method.attached",
    "customer.updated",
    "customer.deleted",
    "refund.created",
    "refund.updated",
    "refund.failed",
    "charge.dispute.created",
    "charge.dispute.closed",
    "charge.dispute.funds_withdrawn",
    "test_helpers.test_clock.ready",
)
"""Every type with an effect."""
PAYMENT_TYPES: Final = (
    "payment_intent.succeeded",
    "checkout.session.completed",
    "setup_intent.succeeded",
)
"""Types after which a tenant may be restored. They have a thread of their own, so that they wait for no other event."""
ListEvents = Callable[[datetime, datetime], list[StripeEvent]]
_KEPT: Final = timedelta(days=30)  # how long Stripe lists events
_OVERLAP: Final = timedelta(minutes=10)  # events may appear late in the list, and clocks differ
_WINDOW_MIN: Final = timedelta(seconds=1)
_LEASE_S: Final = 120  # above the time that reading one object takes
_LIST: Final = "events"
_PAUSE_FIRST_MS: Final = 2_000
_PAUSE_LONGEST_MS: Final = 3_600_000


def store(session: Session, events: Iterable[StripeEvent], *, source: Literal["webhook", "list"]) -> int:
    """Store events that are not known. Returns how many were new. Fails closed: an event is stored or an error raised,
    and Stripe sends again what was not stored.
    """
    now = sa.func.clock_timestamp()
    rows = [
        {
            **msgspec.structs.asdict(event),
            "source": source,
            "received_at": now,
            "state": "stored",
            "attempts": 0,
            "next_attempt_at": now,
        }
        for event in events
    ]
    if not rows:
        return 0
    new = session.execute(
        insert(StripeEventRow).values(rows).on_conflict_do_nothing().returning(col(StripeEventRow.id))
    ).all()
    return len(new)


def claim(session: Session, limit: int, now: datetime, *, types: Sequence[str] | None = None) -> list[StripeEventRow]:
    """Events to handle, of all types or of these, the oldest first. They are due again when the lease ends, should this
    worker die.
    """
    due = select(StripeEventRow).where(StripeEventRow.state == "stored", col(StripeEventRow.next_attempt_at) <= now)
    if types is not None:
        due = due.where(col(StripeEventRow.type).in_(types))
    due = due.order_by(col(StripeEventRow.created_at), col(StripeEventRow.id))
    rows = leases.lock_due(session, due, limit=limit)
    for row in rows:
        leases.lease(row, now, _LEASE_S)
    return rows


def finish(session: Session, event_ids: Sequence[str], apply: Callable[[Session], str | None]) -> None:
    """Apply the effect of events about one object and mark them, in one transaction. Events that another worker
    finished are left alone. ``apply`` returns why there was no effect.
    """
    rows = session.exec(
        select(StripeEventRow)
        .where(col(StripeEventRow.id).in_(event_ids), StripeEventRow.state == "stored")
        .order_by(col(StripeEventRow.id))
        .with_for_update()
    ).all()
    if not rows:
        return
    note, now = apply(session), database_now(session)
    for row in rows:
        row.state, row.note, row.handled_at = "handled" if note is None else "ignored", note, now
        session.add(row)
        metrics.EVENTS.labels(row.state).inc()


def postpone(session: Session, event_id: str, reason: str, *, attempts_max: int) -> None:
    """Handle the event again later, or leave it to an admin after the last attempt."""
    row = session.exec(select(StripeEventRow).where(StripeEventRow.id == event_id).with_for_update()).one()
    if row.state != "stored":
        return
    row.note = reason[:500]
    if row.attempts >= attempts_max:
        row.state = "failed"
        raise_alarm(
            session,
            kind="event_failed",
            tenant_id=None,
            message=f"{row.id} ({row.type}) could not be handled in {row.attempts} attempts: {reason}",
            dedupe_key=f"event_failed:{row.id}:{row.attempts}",
        )
    else:
        pause = leases.pause(row.attempts, first_ms=_PAUSE_FIRST_MS, longest_ms=_PAUSE_LONGEST_MS)
        row.next_attempt_at = database_now(session) + pause
    metrics.EVENTS.labels("failed" if row.state == "failed" else "retried").inc()
    session.add(row)


def handle_again(session: Session, event_id: str) -> None:
    """Queue an ignored or failed event again, by an admin's word. Raises NotFound and Conflict."""
    row = session.exec(select(StripeEventRow).where(StripeEventRow.id == event_id).with_for_update()).first()
    if row is None:
        raise NotFound("Stripe event not found.", code="stripe_event_not_found")
    if row.state not in ("ignored", "failed"):
        raise Conflict(f"The event is {row.state}. Only ignored and failed events are handled again.",
                       code="stripe_event_not_retryable")  # fmt: skip
    row.state, row.handled_at, row.next_attempt_at, row.attempts = "stored", None, database_now(session), 0
    session.add(row)


def listed_until(session: Session) -> datetime | None:
    """Up to which instant events were listed."""
    row = session.get(StripeEventsListed, _LIST)
    return None if row is None else row.listed_until


def list_since(list_events: ListEvents, until: datetime, last: datetime | None) -> list[StripeEvent]:
    """The events that Stripe has recorded since the last list; of the last 30 days at most. A window with more events
    than one list may read is halved.
    """
    since = until - _KEPT if last is None else max(until - _KEPT, last - _OVERLAP)
    return _listed(list_events, since, until)


def store_listed(session: Session, found: list[StripeEvent], until: datetime) -> int:
    """Store listed events, and up to when the list went. Returns how many no webhook had brought."""
    new = store(session, found, source="list")
    row = insert(StripeEventsListed).values(name=_LIST, listed_until=until)
    newest = sa.func.greatest(col(StripeEventsListed.listed_until), row.excluded.listed_until)
    session.execute(row.on_conflict_do_update(index_elements=["name"], set_={"listed_until": newest}))
    metrics.EVENTS_LISTED.inc(new)
    return new


def _listed(list_events: ListEvents, since: datetime, until: datetime) -> list[StripeEvent]:
    try:
        return list_events(since, until)
    except StripeLookupInconclusive:
        if until - since <= _WINDOW_MIN:
            raise
        middle = since + (until - since) / 2
        return [*_listed(list_events, since, middle), *_listed(list_events, middle, until)]
