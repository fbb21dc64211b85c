"""Lets a stopped queue go on, by an admin's word: its first operation is looked up at Stripe before anything is sent
again, or it is given up together with what it would have done.
"""

from datetime import datetime

from sqlmodel import Session, col, select

from billing.payments.models import PaymentOperation, PaymentQueue
from billing.payments.settlement import end_charge_of
from core.db import database_now
from core.errors import Conflict, NotFound


def resume(session: Session, tenant_id: str, *, cancel: bool) -> None:
    """Let the tenant's queue go on, or cancel its first operation and let the next one run. Raises NotFound, and
    Conflict if the queue runs, or if the operation cannot be cancelled.
    """
    queue = session.exec(select(PaymentQueue).where(PaymentQueue.tenant_id == tenant_id).with_for_update()).first()
    if queue is None:
        raise NotFound("This tenant has no payments.", code="payment_queue_not_found")
    if queue.stopped_at is None:
        raise Conflict("The queue of this tenant has not stopped.", code="payment_queue_runs")
    first = session.exec(
        select(PaymentOperation)
        .where(PaymentOperation.tenant_id == tenant_id, PaymentOperation.state == "pending")
        .order_by(col(PaymentOperation.position))
        .limit(1)
    ).first()
    now = database_now(session)
    if first is not None and cancel:
        _cancel(session, first, now)
    elif first is not None:
        _approve(session, first, now)
    queue.stopped_at = queue.stopped_reason = None
    queue.next_attempt_at = now
    session.add(queue)


def _approve(session: Session, operation: PaymentOperation, now: datetime) -> None:
    operation.approved = True
    if operation.idempotency_key is not None and operation.object_id is None:
        operation.look_up, operation.key_number, operation.key_since = True, 1, now
    session.add(operation)


def _cancel(session: Session, operation: PaymentOperation, now: datetime) -> None:
    """By the kind and not by the content, so that an operation that cannot be read is cancelled too."""
    if operation.kind == "create_customer":
        raise Conflict(
            "The operation creates the customer, which all others need. Retry it instead.",
            code="payment_operation_needed",
        )
    end_charge_of(session, operation, "the payment was given up")
    operation.state, operation.finished_at = "cancelled", now
    session.add(operation)
