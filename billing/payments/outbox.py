"""Queues operations at Stripe in the caller's transaction, so that an operation exists exactly if its cause does. It
sends nothing: ``runner`` does, after the commit, in the order of queueing, one operation of a tenant at a time.

A transaction that queues something for several tenants does so in the order of their ids: each holds its queue.
"""

from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.payments.models import PaymentOperation, PaymentQueue, PushedInvoice, TopUp
from billing.payments.operations import (
    CarriedPart,
    ChargeTopUp,
    CreateCustomer,
    DeductPayment,
    EndInvoice,
    OpenTopUpPage,
    Operation,
    PushCreditNote,
    PushInvoice,
    kind_of,
    largest_lines,
    storable,
)
from billing.payments.settings import PENDING_PER_TENANT_MAX
from billing.stripe_objects import INVOICE_LINES_MAX, MINIMUM_CHARGE_CENTS
from core.db import database_now
from core.errors import TooManyRequests
from core.ids import new_id

_CARRIED_MAX: Final = 40  # earlier invoices that one push collects


def enqueue(session: Session, tenant_id: str, operation: Operation) -> str | None:
    """Queue an operation. Returns its id, also of one that was queued with the same ``dedupe_key``; None if nothing has
    to be done at Stripe: an invoice of which nothing is due, or less than Stripe charges, which is carried to the next.

    Raises TooManyRequests for a further page or top-up if too many operations wait, and InvalidRequest for an operation
    whose values are outside their bounds.
    """
    queue = open_queue(session, tenant_id)
    known = session.exec(
        select(PaymentOperation.id).where(
            PaymentOperation.tenant_id == tenant_id, PaymentOperation.dedupe_key == operation.dedupe_key
        )
    ).first()
    if known is not None:
        return known
    if operation.fails_alone:
        _require_room(session, tenant_id)
    if isinstance(operation, PushInvoice):
        pushed = _with_carried(session, tenant_id, operation)
        return None if pushed is None else _insert(session, queue, pushed)
    if isinstance(operation, PushCreditNote | DeductPayment | EndInvoice) and not _reaches_stripe(session, operation):
        return None
    if isinstance(operation, OpenTopUpPage | ChargeTopUp):
        _add_top_up(session, tenant_id, operation)
    return _insert(session, queue, operation)


def open_queue(
    session: Session,
    tenant_id: str,
    *,
    name: str | None = None,
    email: str | None = None,
    test_clock: str | None = None,
) -> PaymentQueue:
    """The tenant's queue, locked. The first call creates it with the operation that creates the customer; later ones
    change nothing.
    """
    created = session.execute(
        insert(PaymentQueue)
        .values(tenant_id=tenant_id, test_clock=test_clock, fence=0, created_at=database_now(session))
        .on_conflict_do_nothing()
        .returning(col(PaymentQueue.tenant_id))
    ).first()
    queue = session.exec(
        select(PaymentQueue)
        .where(PaymentQueue.tenant_id == tenant_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()
    if created is not None:
        customer = CreateCustomer(tenant_id=tenant_id, name=name or tenant_id, email=email, test_clock=test_clock)
        _insert(session, queue, customer)
    return queue


def _insert(session: Session, queue: PaymentQueue, operation: Operation) -> str:
    operation_id, now = new_id("pop"), database_now(session)
    session.execute(
        insert(PaymentOperation).values(
            id=operation_id,
            tenant_id=queue.tenant_id,
            kind=kind_of(operation),
            content=storable(operation),
            dedupe_key=operation.dedupe_key,
            state="pending",
            attempts=0,
            created_at=now,
        )
    )
    if queue.next_attempt_at is None:
        queue.next_attempt_at = now
        session.add(queue)
        session.flush()
    return operation_id


def _with_carried(session: Session, tenant_id: str, push: PushInvoice) -> PushInvoice | None:
    """The push with the small invoices before it, or None if it is carried, too. The queue's lock orders pushes."""
    waiting = session.exec(
        select(PushedInvoice)
        .where(PushedInvoice.tenant_id == tenant_id, PushedInvoice.state == "carried")
        .order_by(col(PushedInvoice.created_at), col(PushedInvoice.invoice_id))
        .limit(_CARRIED_MAX)
    ).all()
    parts = tuple(CarriedPart(invoice_id=each.invoice_id, amount_cents=each.amount_cents) for each in waiting)
    lines = largest_lines(push.lines, INVOICE_LINES_MAX - len(parts))
    whole = msgspec.structs.replace(push, lines=lines, carried=parts)
    is_sent = push.due_cents > 0 and whole.total_cents >= MINIMUM_CHARGE_CENTS
    state = "queued" if is_sent else "carried" if push.due_cents > 0 else "ended"
    row = PushedInvoice(
        invoice_id=push.invoice_id,
        tenant_id=tenant_id,
        number=push.number,
        amount_cents=push.due_cents,
        state=state,
        pushed_with=push.invoice_id if is_sent else None,
        created_at=database_now(session),
    )
    session.add(row)
    if is_sent:
        for each in waiting:
            each.state, each.pushed_with = "queued", push.invoice_id
            session.add(each)
    session.flush()
    return whole if is_sent else None


def _reaches_stripe(session: Session, operation: PushCreditNote | DeductPayment | EndInvoice) -> bool:
    """Whether the invoice is collected at Stripe. One that is carried changes here, and nothing is sent."""
    row = session.get(PushedInvoice, operation.invoice_id, with_for_update=True)
    if row is None or row.state == "ended":
        return False
    if row.state != "carried":
        return True
    if isinstance(operation, EndInvoice):
        row.state = "ended"
    elif isinstance(operation, DeductPayment) or operation.to == "amount_due":
        row.amount_cents -= min(row.amount_cents, operation.amount_cents)
        row.state = "carried" if row.amount_cents else "ended"
    session.add(row)
    session.flush()
    return False


def _add_top_up(session: Session, tenant_id: str, operation: OpenTopUpPage | ChargeTopUp) -> None:
    top_up_id = operation.top_up_id if isinstance(operation, ChargeTopUp) else operation.request_id
    session.add(
        TopUp(
            id=top_up_id,
            tenant_id=tenant_id,
            amount_cents=operation.amount_cents,
            created_at=database_now(session),
        )
    )
    session.flush()


def _require_room(session: Session, tenant_id: str) -> None:
    waiting = session.exec(
        select(sa.func.count()).where(PaymentOperation.tenant_id == tenant_id, PaymentOperation.state == "pending")
    ).one()
    if waiting >= PENDING_PER_TENANT_MAX:
        raise TooManyRequests(
            f"{waiting} payment operations of this tenant wait already. Try again later, or contact the platform's "
            "operator.",
            code="payment_queue_full",
            retry_after_s=60,
        )
