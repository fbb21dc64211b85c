"""Dunning: when the payment of an invoice is attempted again, when its owner has to act, and when an unpaid tenant is
suspended. Stripe knows payments and no invoices, so dunning is ours alone.

Time is the tenant's: that of its customer's test clock if it has one, else the database's.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from billing.each_tenant import each_tenant
from billing.invoices.queries import read_invoice
from billing.notifications.outbox import notify
from billing.payments import outbox, standings
from billing.payments.models import DunningCase, PaymentCharge, PaymentQueue
from billing.payments.operations import CollectInvoice
from billing.payments.settings import REMINDER_DAYS, PaymentSettings
from core.db import DatabaseClock, database_now, unit_of_work

Failure = Literal["declined", "hard", "needs_owner", "no_method"]
"""Only a declined card is tried again by itself."""
_IS_OPEN = col(DunningCase.ended_at).is_(None)
_IS_TRANSFER = col(DunningCase.suspends_at).is_(None)


def next_attempt(started_at: datetime, now: datetime, days: Sequence[int]) -> datetime | None:
    """The first day of the schedule that is still to come; None after the last."""
    times = (started_at + timedelta(days=day) for day in sorted(days))
    return next((at for at in times if at > now), None)


def tenant_now(session: Session, tenant_id: str, clock: DatabaseClock = database_now) -> datetime:
    """The tenant's time."""
    clock_at = session.exec(select(PaymentQueue.clock_at).where(PaymentQueue.tenant_id == tenant_id)).first()
    return clock_at or clock(session)


def await_transfer(session: Session, tenant_id: str, invoice_id: str, due_on: date) -> None:
    """Remind the owner of an invoice before and after its due date, and charge no card."""
    due_at, now = datetime.combine(due_on, datetime.min.time(), UTC), tenant_now(session, tenant_id)
    session.add(
        DunningCase(
            invoice_id=invoice_id,
            tenant_id=tenant_id,
            started_at=due_at,
            attempts=0,
            next_attempt_at=next_attempt(due_at, now, REMINDER_DAYS),
            pay_token=secrets.token_urlsafe(32),
        )
    )


def awaited_transfers(session: Session, tenant_id: str) -> set[str]:
    """The ids of open invoices that the tenant pays by transfer."""
    wanted = select(DunningCase.invoice_id).where(DunningCase.tenant_id == tenant_id, _IS_OPEN, _IS_TRANSFER)
    return set(session.exec(wanted))


def attempt_failed(
    session: Session,
    charge: PaymentCharge,
    how: Failure,
    reason: str,
    settings: PaymentSettings,
    clock: DatabaseClock,
    *,
    retries_now: bool,
) -> None:
    """Record a failed attempt, decide about the next, and inform the tenant. ``retries_now`` attempts again at once,
    because the customer has another card since.
    """
    assert charge.invoice_id is not None, "of an invoice"
    now = tenant_now(session, charge.tenant_id, clock)
    case = session.get(DunningCase, charge.invoice_id, with_for_update=True)
    if case is None:
        suspends_at = now + timedelta(days=settings.payments_suspend_days)
        case = DunningCase(
            invoice_id=charge.invoice_id,
            tenant_id=charge.tenant_id,
            started_at=now,
            attempts=1,
            suspends_at=suspends_at,
            pay_token=secrets.token_urlsafe(32),
        )
    if case.ended_at is not None:
        return
    case.tried_method, case.next_attempt_at = charge.method, None
    if retries_now:
        case.next_attempt_at = now
    elif how == "declined":
        case.next_attempt_at = next_attempt(case.started_at, now, settings.payments_dunning_days)
    session.add(case)
    session.flush()
    _inform(session, case, how, reason, charge.amount_cents, settings)


def pay_address(session: Session, invoice_id: str, settings: PaymentSettings) -> str:
    """The address of ours at which an invoice is paid. It stays the same."""
    case = session.get(DunningCase, invoice_id)
    assert case is not None, "an attempt has failed"
    return _address(case, settings)


def method_changed(session: Session, tenant_id: str, method: str, clock: DatabaseClock) -> int:
    """Attempt a tenant's open invoices at once that were not tried with this payment method. Returns their number."""
    cases = session.exec(
        select(DunningCase)
        .where(
            DunningCase.tenant_id == tenant_id,
            _IS_OPEN,
            ~_IS_TRANSFER,
            col(DunningCase.tried_method).is_distinct_from(method),
        )
        .order_by(col(DunningCase.started_at))
        .with_for_update()
    ).all()
    now = tenant_now(session, tenant_id, clock)
    for case in cases:
        case.next_attempt_at = now
        session.add(case)
    return len(cases)


def end(session: Session, invoice_id: str) -> None:
    """End an invoice's case, and lift the suspension if it was the last one."""
    case = session.get(DunningCase, invoice_id, with_for_update=True)
    if case is None or case.ended_at is not None:
        return
    case.next_attempt_at, case.ended_at = None, database_now(session)
    session.add(case)
    session.flush()
    standings.restore_if_paid(session, case.tenant_id)


class DunningRounds:
    """The worker's look at open cases. Without ``collects`` (no key of Stripe's) it only reminds of transfers: no
    tenant is suspended that could not be charged.
    """

    def __init__(
        self, engine: Engine, settings: PaymentSettings, clock: DatabaseClock = database_now, *, collects: bool = True
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._cases = _IS_OPEN if collects else sa.and_(_IS_OPEN, _IS_TRANSFER)

    def run_once(self) -> None:
        """Queue the attempts that are due, and suspend tenants. A tenant that fails stops no other."""
        with unit_of_work(self._engine) as session:
            now = sa.func.coalesce(col(PaymentQueue.clock_at), self._clock(session))
            due = sa.or_(
                col(DunningCase.next_attempt_at) <= now,
                sa.and_(~col(DunningCase.suspended), col(DunningCase.suspends_at) <= now),
            )
            tenant_ids = session.exec(
                select(DunningCase.tenant_id)
                .outerjoin(PaymentQueue, col(PaymentQueue.tenant_id) == DunningCase.tenant_id)
                .where(self._cases, due)
                .distinct()
                .order_by(col(DunningCase.tenant_id))
            ).all()
        each_tenant(tenant_ids, "dunning", self._round)

    def _round(self, tenant_id: str) -> None:
        """Nothing follows for an invoice of which nothing is owed.

        Reads invoices, then locks cases, then the standing, then the queue: the order of all that hold several of them.
        """
        with unit_of_work(self._engine) as session:
            now = tenant_now(session, tenant_id, self._clock)
            wanted = (
                select(DunningCase)
                .where(DunningCase.tenant_id == tenant_id, self._cases)
                .order_by(col(DunningCase.started_at), col(DunningCase.invoice_id))
            )
            paid = [case.invoice_id for case in session.exec(wanted) if not _owes(session, case.invoice_id)]
            cases = session.exec(wanted.with_for_update().execution_options(populate_existing=True)).all()
            for invoice_id in paid:
                end(session, invoice_id)
            cases = [case for case in cases if case.ended_at is None]
            overdue = [each for each in cases if not each.suspended and each.suspends_at and each.suspends_at <= now]
            for case in overdue:
                case.suspended = True
            if overdue:
                days = self._settings.payments_suspend_days
                standings.suspend(session, tenant_id, f"invoice {overdue[0].invoice_id} is unpaid after {days} days")
            for case in cases:
                if case.next_attempt_at is not None and case.next_attempt_at <= now:
                    case.attempts, case.next_attempt_at = case.attempts + 1, None
                    if case.suspends_at is None:
                        case.next_attempt_at = next_attempt(case.started_at, now, REMINDER_DAYS)
                        _remind(session, case, now)
                    else:
                        collect = CollectInvoice(invoice_id=case.invoice_id, attempt=case.attempts)
                        outbox.enqueue(session, tenant_id, collect)
            session.add_all(cases)


def end_if_paid(session: Session, invoice_id: str) -> None:
    """End an invoice's case if nothing is owed any more. A tenant is not suspended for what it does not owe."""
    if not _owes(session, invoice_id):
        end(session, invoice_id)


def _owes(session: Session, invoice_id: str) -> bool:
    invoice = read_invoice(session, invoice_id)
    return invoice.status == "open" and invoice.amount_due_cents > 0


def _address(case: DunningCase, settings: PaymentSettings) -> str:
    return f"{settings.control_public_url}/pay/{case.pay_token}"


def _remind(session: Session, case: DunningCase, now: datetime) -> None:
    invoice, event_type = read_invoice(session, case.invoice_id), "invoice.will_be_due"
    if now >= case.started_at + timedelta(days=1):
        event_type = "invoice.overdue"
    notify(
        session,
        tenant_id=case.tenant_id,
        event_type=event_type,
        data={
            "invoice_id": case.invoice_id,
            "number": invoice.number,
            "due_cents": invoice.amount_due_cents,
            "due_on": f"{case.started_at:%Y-%m-%d}",
        },
        dedupe_key=f"{event_type}:{case.invoice_id}:{case.attempts}",
    )


def _inform(
    session: Session, case: DunningCase, how: Failure, reason: str, due_cents: int, settings: PaymentSettings
) -> None:
    number = read_invoice(session, case.invoice_id).number
    facts = {"invoice_id": case.invoice_id, "number": number, "due_cents": due_cents, "url": _address(case, settings)}
    if how == "needs_owner":
        notify(
            session,
            tenant_id=case.tenant_id,
            event_type="invoice.payment_action_required",
            data=facts,
            dedupe_key=f"invoice.payment_action_required:{case.invoice_id}:{case.attempts}",
        )
        return
    at = case.next_attempt_at
    following = "none" if how == "declined" else "none, until there is another payment method"
    notify(
        session,
        tenant_id=case.tenant_id,
        event_type="invoice.payment_failed",
        data={**facts, "reason": reason[:500], "next_attempt": at.isoformat() if at else following},
        dedupe_key=f"invoice.payment_failed:{case.invoice_id}:{case.attempts}",
    )
