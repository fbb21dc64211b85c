"""Lets a stopped queue go on, by an admin's word: its first operation is looked up at Stripe before anything is sent
again, or it is given up together with what it would have done.
"""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.payments.models import PaymentOperation, PaymentQueue, PaymentStep
from billing.payments.operations import top_up_of_stored
from billing.payments.pushed_invoices import collected_with
from billing.payments.queue import APPROVED
from billing.payments.settlement import fail_top_up
from core.db import database_now
from core.errors import Conflict, NotFound

_FINALIZED: Final = "finalize"
"""The step from which on Stripe asks for money. A draft that is left behind asks for none."""


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
    session.execute(
        sa.update(PaymentStep)
        .where(col(PaymentStep.operation_id) == operation.id, col(PaymentStep.finished_at).is_(None))
        .values(look_up=True, generation=1, key_since=now)
    )
    approved = {
        "operation_id": operation.id,
        "name": APPROVED,
        "object_id": APPROVED,
        "idempotency_key": f"{operation.id}:{APPROVED}",
        "look_up": False,
        "generation": 1,
    }
    instants = dict.fromkeys(("key_since", "started_at", "finished_at"), now)
    session.execute(insert(PaymentStep).values(**approved, **instants).on_conflict_do_nothing())


def _cancel(session: Session, operation: PaymentOperation, now: datetime) -> None:
    """By the kind and not by the content, so that an operation that cannot be read is cancelled too."""
    if operation.kind == "create_customer":
        raise Conflict(
            "The operation creates the customer, which all others need. Retry it instead.",
            code="payment_operation_needed",
        )
    if operation.kind == "push_invoice":
        _give_up_push(session, operation)
    top_up_id = top_up_of_stored(operation.kind, operation.content)
    if top_up_id is not None:
        fail_top_up(session, top_up_id, "the payment was given up", needs_owner=False)
    operation.state, operation.finished_at = "cancelled", now
    session.add(operation)


def _give_up_push(session: Session, operation: PaymentOperation) -> None:
    """End the collection of the invoice. What was carried into it waits for the tenant's next invoice."""
    if session.get(PaymentStep, (operation.id, _FINALIZED)) is not None:
        draft = session.get(PaymentStep, (operation.id, "invoice"))
        found = "the invoice" if draft is None else draft.object_id
        raise Conflict(
            f"Stripe may ask for the money of {found} already. Void it at Stripe, and resume without cancel: the "
            "operation then ends.",
            code="payment_operation_needed",
        )
    invoice_id = operation.content.get("invoice_id")
    for row in collected_with(session, str(invoice_id)):
        row.state, row.pushed_with = "ended" if row.invoice_id == invoice_id else "carried", None
        session.add(row)
