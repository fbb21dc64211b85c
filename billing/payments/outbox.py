"""Queues operations at Stripe in the caller's transaction, so that an operation exists exactly if its cause does. It
sends nothing: ``runner`` does, after the commit, in the order of queueing, one operation of a tenant at a time.

A transaction that queues something for several tenants does so in the order of their ids: each holds its queue.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.payments.models import PaymentCharge, PaymentOperation, PaymentQueue
from billing.payments.operations import (
    ChargeTopUp,
    CreateCustomer,
    OpenInvoicePage,
    OpenTopUpPage,
    Operation,
    kind_of,
    storable,
)
from billing.payments.settings import PENDING_PER_TENANT_MAX
from core.db import database_now
from core.errors import TooManyRequests
from core.ids import new_id


def enqueue(session: Session, tenant_id: str, operation: Operation) -> str:
    """Queue an operation. Returns its id, also of one that was queued with the same ``dedupe_key``.

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
    operation_id = _insert(session, queue, operation)
    if isinstance(operation, OpenTopUpPage | ChargeTopUp):
        on_page = isinstance(operation, OpenTopUpPage)
        session.add(
            PaymentCharge(
                id=operation.request_id if isinstance(operation, OpenTopUpPage) else operation.charge_id,
                tenant_id=tenant_id,
                amount_cents=operation.amount_cents,
                on_page=on_page,
                created_at=database_now(session),
            )
        )
        session.flush()
    return operation_id


def page_of_invoice(session: Session, tenant_id: str, invoice_id: str) -> str:
    """Queue a page on which the owner pays an invoice. Returns the operation's id, also of a page that still waits."""
    open_queue(session, tenant_id)  # locked, so two visitors ask for one page
    waiting = session.exec(
        select(PaymentOperation.id).where(
            PaymentOperation.tenant_id == tenant_id,
            PaymentOperation.state == "pending",
            PaymentOperation.kind == "open_invoice_page",
            col(PaymentOperation.content)["invoice_id"].as_string() == invoice_id,
        )
    ).first()
    return waiting or enqueue(session, tenant_id, OpenInvoicePage(request_id=new_id("pop"), invoice_id=invoice_id))


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
        .values(tenant_id=tenant_id, test_clock=test_clock, attempts=0, created_at=database_now(session))
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
