"""Posts the difference between what a period's usage costs by its price card and what is on the ledger for it.

Records are charged the highest price, in any order. The cost of the period is a pure function of all of them
(``billing.charges.period_charge``), so the differences end at the same amount, however often they are posted.
"""

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.charges.lines import DraftInvoiceLine
from billing.charges.models import UsageAdjustment
from billing.charges.period_charge import charge
from billing.charges.totals import read_totals
from billing.periods import Period
from billing.usage import sums
from core.db import database_now
from core.ids import new_id


def adjust(session: Session, tenant_id: str, period: Period) -> tuple[list[DraftInvoiceLine], int]:
    """The lines of a period without cents, and the amount that was posted now so that the ledger has their sum.

    The caller holds the tenant's subscription, so no usage and no other adjustment of the tenant is posted meanwhile.
    """
    totals, versions = read_totals(session, tenant_id, period)
    lines = charge(totals, versions)
    owed = sum(line.amount_nanos for line in lines)
    posted = sum(total.recorded_nanos for total in totals) + posted_before(session, tenant_id, period)
    difference = owed - posted
    if difference != 0:
        _post(session, tenant_id, period, difference)
    return lines, difference


def posted_before(session: Session, tenant_id: str, period: Period) -> int:
    """The sum of a period's adjustments."""
    statement = select(sa.cast(sa.func.coalesce(sa.func.sum(UsageAdjustment.amount_nanos), 0), sa.BigInteger)).where(
        UsageAdjustment.tenant_id == tenant_id,
        col(UsageAdjustment.period_start) >= period.start,
        col(UsageAdjustment.period_start) < period.end,
    )
    return session.exec(statement).one()


def _post(session: Session, tenant_id: str, period: Period, amount_nanos: int) -> None:
    transfer_id, now = new_id("tr"), database_now(session)
    ledger.post(
        session,
        ledger.adjustment_posting(transfer_id=transfer_id, tenant_id=tenant_id, amount_nanos=amount_nanos),
    )
    session.add(
        UsageAdjustment(
            id=new_id("adj"),
            tenant_id=tenant_id,
            period_start=period.start,
            amount_nanos=amount_nanos,
            transfer_id=transfer_id,
            created_at=now,
        )
    )
    sums.add_adjustment(session, tenant_id, now, amount_nanos)
    session.flush()
