"""Claims and ends the operations of tenants' queues. Each is one transaction, and nothing is sent within it.

A claim is a lease of the whole queue with a fence. If a worker dies, the queue is claimed again when the lease ends,
and the operation goes on with the same key. A worker that lost its lease changes neither the queue nor its operations.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from billing.payments import metrics
from billing.payments.alarms import raise_alarm
from billing.payments.booking import end_charge_of
from billing.payments.models import PaymentOperation, PaymentQueue
from billing.payments.operations import Operation, decoded
from billing.payments.settings import PaymentSettings
from core import leases
from core.db import DatabaseClock, database_now, unit_of_work
from core.errors import Conflict, InvalidRequest, NotFound

Effect = Callable[[Session], None]
_ERROR_LENGTH_MAX = 1_000


class LeaseLost(Exception):
    """Another worker has claimed the queue since."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation came to: its result, and the effect that is booked together with it. ``failure`` ends the
    operation as failed; the queue goes on.
    """

    result: dict[str, Any]
    effect: Effect | None = None
    failure: str | None = None


class QueueStops(Exception):
    """Nothing more may be sent for this tenant until an admin has looked."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The first waiting operation of a queue, which this worker may attempt until its lease ends."""

    tenant_id: str
    fence: int
    customer_id: str | None
    test_clock: str | None
    operation_id: str
    operation: Operation
    attempts: int
    approved: bool
    waits_since: datetime


class PaymentQueues:
    """The queues as one worker sees them. ``clock`` is Postgres's, except in tests that move time."""

    def __init__(self, engine: Engine, settings: PaymentSettings, clock: DatabaseClock = database_now) -> None:
        self.engine = engine
        self.settings = settings
        self.clock = clock

    def claim(self) -> Claim | None:
        """Lease the queue that has waited longest, if one is due."""
        with unit_of_work(self.engine) as session:
            now = self.clock(session)
            due = select(PaymentQueue).where(
                col(PaymentQueue.stopped_at).is_(None), col(PaymentQueue.next_attempt_at) <= now
            )
            queues = leases.lock_due(session, due.order_by(col(PaymentQueue.next_attempt_at)))
            return self._lease(session, queues[0], now) if queues else None

    def _lease(self, session: Session, queue: PaymentQueue, now: datetime) -> Claim | None:
        row = _first_waiting(session, queue.tenant_id)
        if row is None:
            queue.next_attempt_at = None
            return None
        metrics.OLDEST_WAITING_SECONDS.set(max(0, (now - row.created_at).total_seconds()))
        try:
            operation = decoded(row.content)
        except InvalidRequest as error:  # written by another version; the other tenants' queues go on
            _stop(session, queue, row.id, now, kind="operation_unreadable", reason=error.message)
            return None
        leases.lease(queue, now, self.settings.payments_lease_s)
        row.attempts += 1
        return Claim(
            tenant_id=queue.tenant_id,
            fence=queue.attempts,
            customer_id=queue.customer_id,
            test_clock=queue.test_clock,
            operation_id=row.id,
            operation=operation,
            attempts=row.attempts,
            approved=row.approved,
            waits_since=row.created_at,
        )

    def keep(self, session: Session, claim: Claim) -> datetime:
        """Extend the lease within a transaction that writes for the claim. Returns the time. Raises LeaseLost."""
        queue, now = self._held(session, claim), self.clock(session)
        leases.extend(queue, now, self.settings.payments_lease_s)
        return now

    def finish(self, claim: Claim, outcome: Outcome) -> None:
        """End the operation together with its effect, in one transaction. Raises LeaseLost, and changes nothing then.

        The effect runs first: it may lock invoices, which other transactions lock before a queue.
        """
        with unit_of_work(self.engine) as session:
            if outcome.effect is not None:
                outcome.effect(session)
                session.flush()
            queue, now = self._held(session, claim), self.clock(session)
            row = session.get_one(PaymentOperation, claim.operation_id)
            row.state = "done" if outcome.failure is None else "failed"
            row.result, row.last_error, row.finished_at = outcome.result, outcome.failure, now
            session.flush()
            queue.next_attempt_at = now if _first_waiting(session, claim.tenant_id) else None

    def postpone(self, claim: Claim, reason: str, *, pause: timedelta) -> None:
        """Attempt the operation again after a pause. Later operations of the tenant wait for it."""
        with unit_of_work(self.engine) as session:
            queue, now = self._held(session, claim), self.clock(session)
            self._note(session, claim, reason)
            silent_s = self.settings.payments_silence_alarm_s
            if now - claim.waits_since > timedelta(seconds=silent_s) and claim.attempts > 1:
                raise_alarm(
                    session,
                    kind="stripe_silent",
                    tenant_id=claim.tenant_id,
                    message=f"{claim.operation_id} has waited for more than {silent_s} s: {reason}",
                    dedupe_key=f"silent:{claim.operation_id}",
                )
            queue.next_attempt_at = now + pause

    def stop(self, claim: Claim, kind: str, reason: str) -> None:
        """Stop the tenant's queue until an admin has looked, and raise an alarm."""
        with unit_of_work(self.engine) as session:
            queue, now = self._held(session, claim), self.clock(session)
            self._note(session, claim, reason)
            _stop(session, queue, claim.operation_id, now, kind=kind, reason=reason)

    def _held(self, session: Session, claim: Claim) -> PaymentQueue:
        """The claim's queue, locked. Raises LeaseLost."""
        mine = select(PaymentQueue).where(PaymentQueue.tenant_id == claim.tenant_id)
        queue = leases.held(session, mine, claim.fence)
        if queue is None:
            raise LeaseLost(claim.operation_id)
        return queue

    def _note(self, session: Session, claim: Claim, reason: str) -> None:
        session.get_one(PaymentOperation, claim.operation_id).last_error = reason[:_ERROR_LENGTH_MAX]


def _first_waiting(session: Session, tenant_id: str) -> PaymentOperation | None:
    wanted = select(PaymentOperation).where(
        PaymentOperation.tenant_id == tenant_id, PaymentOperation.state == "pending"
    )
    return session.exec(wanted.order_by(col(PaymentOperation.position)).limit(1)).first()


def _stop(session: Session, queue: PaymentQueue, operation_id: str, now: datetime, *, kind: str, reason: str) -> None:
    queue.next_attempt_at = queue.stopped_at = now
    queue.stopped_reason = reason[:_ERROR_LENGTH_MAX]
    raise_alarm(
        session,
        kind=kind,
        tenant_id=queue.tenant_id,
        message=f"The queue has stopped at {operation_id}: {reason}",
        dedupe_key=f"stopped:{operation_id}:{now.isoformat()}",
    )


def resume(session: Session, tenant_id: str, *, cancel: bool) -> None:
    """Let a stopped queue go on, by an admin's word: its first operation is looked up at Stripe before anything is sent
    again, or it is cancelled together with what it would have done. Raises NotFound, and Conflict if the queue runs, or
    if the operation cannot be cancelled.
    """
    queue = session.exec(select(PaymentQueue).where(PaymentQueue.tenant_id == tenant_id).with_for_update()).first()
    if queue is None:
        raise NotFound("This tenant has no payments.", code="payment_queue_not_found")
    if queue.stopped_at is None:
        raise Conflict("The queue of this tenant has not stopped.", code="payment_queue_runs")
    first = _first_waiting(session, tenant_id)
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
