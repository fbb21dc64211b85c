"""Ends a tenant's subscription: fees stop, and the schedule makes the final invoice at its next look, without grace."""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.subscriptions.models import Subscription
from core.db import database_now


def end_subscription(session: Session, tenant_id: str) -> datetime:
    """End the subscription now, unless it has ended before. Returns when it ended. Usage that settles later is on a
    supplementary invoice at the end of the period.
    """
    wanted = select(Subscription.ended_at).where(Subscription.tenant_id == tenant_id).with_for_update()
    ended_at = session.exec(wanted).one()
    if ended_at is not None:
        return ended_at
    now = database_now(session)
    session.exec(sa.update(Subscription).where(col(Subscription.tenant_id) == tenant_id).values(ended_at=now))
    return now


def ended_at_of(session: Session, tenant_id: str) -> datetime | None:
    """When the tenant's subscription ended, if it did."""
    return session.exec(select(Subscription.ended_at).where(Subscription.tenant_id == tenant_id)).first()


def read_ended(session: Session) -> dict[str, datetime]:
    """When each subscription ended that has ended and is not invoiced up to then."""
    rows = session.exec(
        select(Subscription.tenant_id, Subscription.ended_at).where(
            col(Subscription.ended_at).is_not(None),
            col(Subscription.billed_until).is_(None) | (col(Subscription.billed_until) < col(Subscription.ended_at)),
        )
    )
    return {tenant_id: ended_at for tenant_id, ended_at in rows if ended_at is not None}
