"""Assigns tenants to plans, now or at a later instant. Rows are only added: of two assignments from the same instant
on, the one that was made last holds, so a later change is cancelled by assigning the plan of now for its instant.
"""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.prices.models import PlanAssignment
from billing.subscriptions.models import Subscription
from core.db import database_now
from core.periods import EPOCH, TICK


class PlanChange(NamedTuple):
    """A change that begins later."""

    plan_id: str
    effective_from: datetime


class _Assignments(NamedTuple):
    """``current`` has begun, also where the database's clock was set back since; the others begin later."""

    current: PlanAssignment | None
    later: list[PlanAssignment]
    now: datetime


def assign_plan(session: Session, *, tenant_id: str, plan_id: str, effective_from: datetime | None = None) -> None:
    """Price the tenant by ``plan_id`` from an instant on, or from now on. Any other change that would begin later is
    cancelled. A tenant's first plan applies since the epoch, like a plan's first version.

    Assigning the plan that the tenant has changes nothing else. ``effective_from`` lies in the future.
    """
    serialize_decision(session, f"plan of tenant {tenant_id}")
    found = _read(session, tenant_id)
    if found.current is None:
        assert effective_from is None, "the first plan of a tenant applies at once"
        _add(session, tenant_id, plan_id, EPOCH, found.now)
        opened = insert(Subscription).values(tenant_id=tenant_id, created_at=found.now)
        session.connection().execute(opened.on_conflict_do_nothing())  # so that fees are billed without usage
        return
    kept = plan_id if effective_from is None else found.current.plan_id
    made_at = _cancel(session, found, kept)
    if effective_from is not None:
        _add(session, tenant_id, plan_id, effective_from, made_at)
    elif found.current.plan_id != plan_id:
        # A database clock that was set back must not order this assignment before the last one.
        begins = max(found.now, found.current.effective_from + TICK)
        _add(session, tenant_id, plan_id, begins, made_at)


def later_change(session: Session, tenant_id: str) -> PlanChange | None:
    """The change of plan that begins later, if there is one."""
    found = _read(session, tenant_id)
    current = None if found.current is None else found.current.plan_id
    changes = (PlanChange(each.plan_id, each.effective_from) for each in found.later if each.plan_id != current)
    return next(changes, None)


def cancel_later_change(session: Session, tenant_id: str) -> PlanChange | None:
    """Cancel the change that begins later. Returns it, or None when there is none."""
    serialize_decision(session, f"plan of tenant {tenant_id}")
    change = later_change(session, tenant_id)
    if change is not None:
        found = _read(session, tenant_id)
        assert found.current is not None, "a later change needs a plan before it"
        _cancel(session, found, found.current.plan_id)
    return change


def plan_at(session: Session, tenant_id: str, at: datetime) -> str | None:
    """The plan that prices the tenant at an instant."""
    return session.exec(
        select(PlanAssignment.plan_id)
        .where(PlanAssignment.tenant_id == tenant_id, PlanAssignment.effective_from <= at)
        .order_by(col(PlanAssignment.effective_from).desc(), col(PlanAssignment.created_at).desc())
        .limit(1)
    ).first()


def begun_between(session: Session, after: datetime | None, until: datetime) -> set[tuple[str, datetime]]:
    """The tenants of which an assignment that was made for later has begun after ``after``, if it is given, and by
    ``until``; and when.
    """
    begun = [
        col(PlanAssignment.effective_from) > col(PlanAssignment.created_at),
        col(PlanAssignment.effective_from) <= until,
    ]
    if after is not None:
        begun.append(col(PlanAssignment.effective_from) > after)
    return set(session.exec(select(PlanAssignment.tenant_id, PlanAssignment.effective_from).where(*begun)))


def _read(session: Session, tenant_id: str) -> _Assignments:
    now = database_now(session)
    rows = session.exec(
        select(PlanAssignment)
        .where(PlanAssignment.tenant_id == tenant_id)
        .order_by(col(PlanAssignment.effective_from), col(PlanAssignment.created_at))
    ).all()
    current: PlanAssignment | None = None
    later: dict[datetime, PlanAssignment] = {}
    for row in rows:
        if row.effective_from <= max(now, row.created_at):
            current = row
        else:
            later[row.effective_from] = row
    return _Assignments(current, list(later.values()), now)


def _cancel(session: Session, found: _Assignments, plan_id: str) -> datetime:
    """Assign a plan for the instants of all later changes. Returns when the next row may say that it was made."""
    newest = max((each.created_at for each in found.later), default=found.now)
    made_at = max(found.now, newest + TICK)
    for each in found.later:
        if each.plan_id != plan_id:
            _add(session, each.tenant_id, plan_id, each.effective_from, made_at)
    return made_at + TICK


def _add(session: Session, tenant_id: str, plan_id: str, begins: datetime, made_at: datetime) -> None:
    session.add(PlanAssignment(tenant_id=tenant_id, plan_id=plan_id, effective_from=begins, created_at=made_at))
    session.flush()
