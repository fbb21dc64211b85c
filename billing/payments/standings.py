"""Whether a tenant is suspended for an unpaid invoice: decided here, applied by the control plane that owns tenants."""

from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.notifications.outbox import notify
from billing.payments import metrics
from billing.payments.models import DunningCase, PaymentStanding
from core.db import database_now

Standing = Literal["good", "suspended"]


class StandingChange(NamedTuple):
    """A change that the control plane has not applied. ``ours`` says whether it had suspended the tenant for us."""

    tenant_id: str
    standing: Standing
    reason: str
    ours: bool


def suspend(session: Session, tenant_id: str, reason: str) -> None:
    """Have the tenant suspended soon after the caller's transaction commits. For each overdue invoice, because an admin
    may have lifted the suspension for an earlier one.
    """
    _change(session, tenant_id, "suspended", reason)
    metrics.SUSPENDED.inc()


def restore_if_paid(session: Session, tenant_id: str) -> None:
    """Lift the suspension if no invoice that caused it is open."""
    standing = session.get(PaymentStanding, tenant_id, with_for_update=True)
    if standing is None or standing.standing == "good":
        return
    open_cases = session.exec(
        select(sa.func.count()).where(
            DunningCase.tenant_id == tenant_id, DunningCase.suspended, col(DunningCase.ended_at).is_(None)
        )
    ).one()
    if open_cases == 0:
        _change(session, tenant_id, "good", "all overdue invoices are paid")


def waiting(session: Session, limit: int) -> list[StandingChange]:
    """Changes to apply, the oldest first, locked until the caller's transaction ends."""
    rows = session.exec(
        select(PaymentStanding)
        .where(col(PaymentStanding.applied_at).is_(None))
        .order_by(col(PaymentStanding.changed_at))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [
        StandingChange(row.tenant_id, "good" if row.standing == "good" else "suspended", row.reason, row.ours)
        for row in rows
    ]


def mark_applied(session: Session, tenant_id: str, *, ours: bool) -> None:
    """Record that the control plane has applied the change, and whether it suspended the tenant for us."""
    row = session.exec(select(PaymentStanding).where(PaymentStanding.tenant_id == tenant_id)).one()
    row.applied_at, row.ours = database_now(session), ours
    session.add(row)


def _change(session: Session, tenant_id: str, standing: Standing, reason: str) -> None:
    now = database_now(session)
    values = {"standing": standing, "reason": reason, "changed_at": now, "applied_at": None}
    session.execute(
        insert(PaymentStanding)
        .values(tenant_id=tenant_id, ours=False, **values)
        .on_conflict_do_update(index_elements=["tenant_id"], set_=values)
    )
    notify(
        session,
        tenant_id=tenant_id,
        event_type="tenant.suspended" if standing == "suspended" else "tenant.restored",
        data={"reason": reason},
        dedupe_key=f"standing:{standing}:{now.isoformat()}",
    )
