"""Notes why a tenant's ended period has no invoice yet, and when it is tried again. Only that tenant waits."""

from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.invoices.models import InvoiceHold
from core.db import database_now, unit_of_work

_FIRST_PAUSE: Final = timedelta(minutes=1)
_LONGEST_PAUSE: Final = timedelta(hours=1)
_DOUBLINGS_MAX: Final = 6
_REASON_MAX: Final = 500


def hold(engine: sa.Engine, tenant_id: str, reason: str) -> None:
    """Note a failed attempt. The pause before the next one doubles up to an hour."""
    with unit_of_work(engine) as session:
        known = session.get(InvoiceHold, tenant_id)
        attempts = 1 if known is None else known.attempts + 1
        now = database_now(session)
        values = {
            "reason": reason[:_REASON_MAX],
            "attempts": attempts,
            "next_try_at": now + min(_FIRST_PAUSE * 2 ** min(attempts - 1, _DOUBLINGS_MAX), _LONGEST_PAUSE),
        }
        session.exec(
            insert(InvoiceHold)
            .values(tenant_id=tenant_id, since=now, **values)
            .on_conflict_do_update(index_elements=[col(InvoiceHold.tenant_id)], set_=values)
        )


def release(session: Session, tenant_id: str) -> None:
    """Forget the failures of a tenant whose invoice is made."""
    session.exec(sa.delete(InvoiceHold).where(col(InvoiceHold.tenant_id) == tenant_id))


def read_hold(session: Session, tenant_id: str) -> InvoiceHold | None:
    """Why the tenant's invoice waits, if it does."""
    return session.get(InvoiceHold, tenant_id)


def held_until(session: Session, now: datetime) -> set[str]:
    """The tenants whose next attempt is after ``now``."""
    return set(session.exec(select(InvoiceHold.tenant_id).where(col(InvoiceHold.next_try_at) > now)))
