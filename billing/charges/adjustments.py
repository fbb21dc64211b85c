"""Posts the difference between what a period's usage costs by its price card and what is on the ledger for it.

Records are charged the highest price, in any order. The cost of the period is a pure function of all of them
(``billing.charges.statement``), so the differences end at the same amount, however often they are posted.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.charges.models import UsageAdjustment
from core import clock
from core.db import among, database_now
from core.ids import first_id_of_ms, new_id
from core.periods import Period
from core.spend_windows import WindowBounds

_CLOCKS_APART: Final = timedelta(hours=1)


class Owed(NamedTuple):
    """What a period costs in all, the part that is usage, and what its usage records say that it costs."""

    amount_nanos: int
    usage_nanos: int
    recorded_nanos: int


def post_difference(session: Session, tenant_id: str, period: Period, owed: Owed) -> int:
    """Post what is missing on the ledger to what a period costs. Returns the amount.

    The caller holds the tenant's subscription, so no usage and no other adjustment of the tenant is posted meanwhile.
    """
    amount_before, usage_before = _posted_before(session, tenant_id, period)
    amount_nanos = owed.amount_nanos - owed.recorded_nanos - amount_before
    usage_nanos = owed.usage_nanos - owed.recorded_nanos - usage_before
    if amount_nanos != 0:
        _post(session, tenant_id, period, amount_nanos, usage_nanos)
    return amount_nanos


def usage_adjusted_in(session: Session, tenant_ids: Collection[str], made: WindowBounds) -> dict[str, int]:
    """By how much the usage of these tenants was adjusted by adjustments that were made in a span of time."""
    total = sa.cast(sa.func.sum(col(UsageAdjustment.usage_nanos)), sa.BigInteger)
    low, high = (clock.to_ms(at) for at in (made.start - _CLOCKS_APART, made.end + _CLOCKS_APART))
    statement = (
        select(UsageAdjustment.tenant_id, total)
        .where(
            among(col(UsageAdjustment.tenant_id), tenant_ids),
            # Ids are in the order of time, which makes this a range of the primary key.
            col(UsageAdjustment.id) >= first_id_of_ms("adj", low),
            col(UsageAdjustment.id) < first_id_of_ms("adj", high),
            col(UsageAdjustment.created_at) >= made.start,
            col(UsageAdjustment.created_at) < made.end,
        )
        .group_by(col(UsageAdjustment.tenant_id))
    )
    return dict(session.exec(statement).all())


def _posted_before(session: Session, tenant_id: str, period: Period) -> tuple[int, int]:
    """The sums of a period's adjustments: in all, and of usage."""
    amount, usage = (
        sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)
        for column in (col(UsageAdjustment.amount_nanos), col(UsageAdjustment.usage_nanos))
    )
    statement = select(amount, usage).where(
        UsageAdjustment.tenant_id == tenant_id,
        col(UsageAdjustment.period_start) >= period.start,
        col(UsageAdjustment.period_start) < period.end,
    )
    return session.exec(statement).one()


def _post(session: Session, tenant_id: str, period: Period, amount_nanos: int, usage_nanos: int) -> None:
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
            usage_nanos=usage_nanos,
            transfer_id=transfer_id,
            created_at=now,
        )
    )
    session.flush()
