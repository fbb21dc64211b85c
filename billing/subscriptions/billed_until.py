"""Up to which instant a tenant's usage is invoiced, and the locks by which recording and closing agree on it."""

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.subscriptions.models import Subscription


def share_billed_until(session: Session, tenant_ids: Iterable[str]) -> dict[str, datetime | None]:
    """The instants of these tenants, which no close can move before the transaction ends. Subscribes new tenants."""
    return _read(session, tenant_ids, share=True)


def lock_subscriptions(session: Session, tenant_ids: Iterable[str]) -> None:
    """Let nothing of these tenants be recorded or closed before the transaction ends. Subscribes new tenants."""
    _read(session, tenant_ids, share=False)


def lock_billed_until(session: Session, tenant_id: str) -> datetime | None:
    """The instant of a subscribed tenant, held until the transaction ends: nothing of the tenant is recorded
    meanwhile.
    """
    wanted = select(Subscription.billed_until).where(Subscription.tenant_id == tenant_id)
    return session.exec(wanted.with_for_update()).one()


def billed_until_of(session: Session, tenant_id: str) -> datetime | None:
    """The instant of a tenant, without a lock."""
    wanted = select(Subscription.billed_until).where(Subscription.tenant_id == tenant_id)
    return session.exec(wanted).one_or_none()


def advance_billed_until(session: Session, tenant_id: str, until: datetime) -> None:
    """Record that everything before ``until`` is invoiced. The caller holds the lock."""
    session.exec(sa.update(Subscription).where(col(Subscription.tenant_id) == tenant_id).values(billed_until=until))


def read_billed_until(session: Session) -> dict[str, datetime | None]:
    """The instants of all tenants that ever used something, in the order of ids, without locks."""
    rows = session.exec(select(Subscription.tenant_id, Subscription.billed_until).order_by(col(Subscription.tenant_id)))
    return dict(rows.all())


def _read(session: Session, tenant_ids: Iterable[str], *, share: bool) -> dict[str, datetime | None]:
    """Rows are locked in the order of their ids, so that writers wait for each other and do not deadlock."""
    wanted = sorted(set(tenant_ids))
    found = _locked(session, wanted, share=share)
    if len(found) < len(wanted):
        missing = [tenant_id for tenant_id in wanted if tenant_id not in found]
        session.exec(
            insert(Subscription)
            .values([{"tenant_id": tenant_id, "created_at": sa.func.now()} for tenant_id in missing])
            .on_conflict_do_nothing()
        )
        found |= _locked(session, missing, share=share)
    return found


def _locked(session: Session, tenant_ids: list[str], *, share: bool) -> dict[str, datetime | None]:
    rows = session.exec(
        select(Subscription.tenant_id, Subscription.billed_until)
        .where(col(Subscription.tenant_id).in_(tenant_ids))
        .order_by(col(Subscription.tenant_id))
        .with_for_update(read=share)
    )
    return dict(rows.all())
