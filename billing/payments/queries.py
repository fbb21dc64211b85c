"""Reads payments for the control plane. Nothing here changes anything at Stripe."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.invoices.queries import read_invoice
from billing.invoices.views import InvoiceView
from billing.payments.models import (
    DunningCase,
    PaymentAlarm,
    PaymentCharge,
    PaymentOperation,
    PaymentQueue,
    PaymentStanding,
    StripeEventRow,
)
from billing.payments.views import (
    EventState,
    PageState,
    PaymentAlarmView,
    PaymentOperationView,
    PaymentPageView,
    PaymentQueueView,
    StripeEventView,
    TopUpView,
)
from core.db import database_now, newest_first
from core.errors import NotFound
from core.struct_types import view_of

_PAGES = ("open_setup_page", "open_portal", "open_top_up_page", "open_invoice_page")
_PAGE_STATES: dict[str, PageState] = {"pending": "pending", "done": "ready"}


def get_page(session: Session, *, tenant_id: str, page_id: str, simulated: bool) -> PaymentPageView:
    """A page that the tenant asked for. Raises NotFound."""
    row = session.exec(
        select(PaymentOperation).where(
            PaymentOperation.id == page_id,
            PaymentOperation.tenant_id == tenant_id,
            col(PaymentOperation.kind).in_(_PAGES),
        )
    ).first()
    if row is None:
        raise NotFound("Payment page not found.", code="payment_page_not_found")
    return view_of(
        row,
        PaymentPageView,
        state=_PAGE_STATES.get(row.state, "failed"),
        url=(row.result or {}).get("url"),
        failure=row.last_error if row.state == "failed" else None,
        simulated=simulated,
    )


def invoice_to_pay(session: Session, token: str) -> InvoiceView | None:
    """The unpaid invoice whose owner has the address with this token, as it is now."""
    case = session.exec(select(DunningCase).where(DunningCase.pay_token == token)).first()
    return None if case is None else read_invoice(session, case.invoice_id)


def list_top_ups(session: Session, *, tenant_id: str, after: str | None, limit: int) -> list[TopUpView]:
    """The tenant's top-ups, newest first."""
    wanted = select(PaymentCharge).where(PaymentCharge.tenant_id == tenant_id, col(PaymentCharge.invoice_id).is_(None))
    rows = newest_first(wanted, col(PaymentCharge.id), after=after, limit=limit)
    return [view_of(row, TopUpView) for row in session.exec(rows)]


def get_queue(session: Session, tenant_id: str) -> PaymentQueueView:
    """One tenant's queue. Raises NotFound."""
    found = _queues(session, [PaymentQueue.tenant_id == tenant_id], None, 1)
    if not found:
        raise NotFound("This tenant has no payments.", code="payment_queue_not_found")
    return found[0]


def list_queues(session: Session, *, stopped: bool | None, after: str | None, limit: int) -> list[PaymentQueueView]:
    """Queues of all tenants, the newest tenant first; with ``stopped`` only those that have stopped, or have not."""
    wanted: list[Any] = []
    if stopped is not None:
        has_stopped = col(PaymentQueue.stopped_at).is_not(None)
        wanted.append(has_stopped if stopped else ~has_stopped)
    return _queues(session, wanted, after, limit)


def count_stopped(session: Session) -> int:
    """The queues that wait for an admin."""
    return session.exec(select(sa.func.count()).where(col(PaymentQueue.stopped_at).is_not(None))).one()


def _queues(session: Session, wanted: Sequence[Any], after: str | None, limit: int) -> list[PaymentQueueView]:
    pending = (
        select(sa.func.count())
        .where(PaymentOperation.tenant_id == PaymentQueue.tenant_id, PaymentOperation.state == "pending")
        .scalar_subquery()
    )
    found = (
        sa.select(PaymentQueue, pending, col(PaymentStanding.standing))
        .outerjoin(PaymentStanding, col(PaymentStanding.tenant_id) == PaymentQueue.tenant_id)
        .where(*wanted)
    )
    return [
        view_of(
            queue,
            PaymentQueueView,
            id=queue.tenant_id,
            customer=queue.customer_id,
            pending=waiting,
            standing="suspended" if standing == "suspended" else "good",
        )
        for queue, waiting, standing in session.execute(
            newest_first(found, col(PaymentQueue.tenant_id), after=after, limit=limit)
        )
    ]


def list_operations(session: Session, *, tenant_id: str, after: str | None, limit: int) -> list[PaymentOperationView]:
    """A tenant's operations, newest first."""
    wanted = select(PaymentOperation).where(PaymentOperation.tenant_id == tenant_id)
    rows = newest_first(wanted, col(PaymentOperation.id), after=after, limit=limit)
    return [view_of(row, PaymentOperationView) for row in session.exec(rows)]


def list_alarms(session: Session, *, after: str | None, limit: int) -> list[PaymentAlarmView]:
    """Alarms, newest first."""
    rows = newest_first(select(PaymentAlarm), col(PaymentAlarm.id), after=after, limit=limit)
    return [view_of(row, PaymentAlarmView) for row in session.exec(rows)]


def mark_alarm_seen(session: Session, alarm_id: str) -> PaymentAlarmView:
    """Note that an admin has looked at an alarm. Raises NotFound."""
    row = session.get(PaymentAlarm, alarm_id, with_for_update=True)
    if row is None:
        raise NotFound("Payment alarm not found.", code="payment_alarm_not_found")
    row.seen_at = row.seen_at or database_now(session)
    session.add(row)
    return view_of(row, PaymentAlarmView)


def list_events(session: Session, *, state: EventState | None, after: str | None, limit: int) -> list[StripeEventView]:
    """Stripe's events, those that came last first."""
    wanted = (
        select(StripeEventRow)
        .order_by(col(StripeEventRow.received_at).desc(), col(StripeEventRow.id).desc())
        .limit(limit)
    )
    if state is not None:
        wanted = wanted.where(StripeEventRow.state == state)
    if after is not None:
        last = session.exec(select(StripeEventRow.received_at).where(StripeEventRow.id == after)).first()
        same = sa.and_(col(StripeEventRow.received_at) == last, col(StripeEventRow.id) < after)
        wanted = wanted.where(sa.or_(col(StripeEventRow.received_at) < last, same))
    return [view_of(row, StripeEventView) for row in session.exec(wanted)]


def get_event(session: Session, event_id: str) -> StripeEventView:
    """One event. Raises NotFound."""
    row = session.get(StripeEventRow, event_id)
    if row is None:
        raise NotFound("Stripe event not found.", code="stripe_event_not_found")
    return view_of(row, StripeEventView)
