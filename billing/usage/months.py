"""Reads what tenants used and were charged by the month, from the sums."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session, col, select

from billing.usage.models import UsageMonth
from core.db import among, database_now, total
from core.periods import month_start


class MonthUse(NamedTuple):
    """Tokens, the cached ones among them, and nanodollars of a tenant in one month."""

    tokens: int
    cached_tokens: int
    amount_nanos: int


def charged_before_month(session: Session, tenant_ids: Collection[str]) -> dict[str, int]:
    """Nanodollars that each of these tenants was charged before the current UTC month, by the database's clock."""
    began = month_start(database_now(session))
    statement = (
        select(UsageMonth.tenant_id, total(UsageMonth.amount_nanos))
        .where(among(col(UsageMonth.tenant_id), tenant_ids), col(UsageMonth.month) < began)
        .group_by(col(UsageMonth.tenant_id))
    )
    return dict.fromkeys(tenant_ids, 0) | dict(session.exec(statement).all())


def month_uses(session: Session, tenant_ids: Collection[str], at: datetime) -> dict[str, MonthUse]:
    """What each of these tenants used and was charged in the UTC month of this instant."""
    statement = (
        select(
            UsageMonth.tenant_id,
            total(UsageMonth.input_tokens) + total(UsageMonth.output_tokens),
            total(UsageMonth.cached_tokens),
            total(UsageMonth.amount_nanos),
        )
        .where(col(UsageMonth.tenant_id).in_(tenant_ids), UsageMonth.month == month_start(at))
        .group_by(col(UsageMonth.tenant_id))
    )
    found = {tenant_id: MonthUse(*sums) for tenant_id, *sums in session.exec(statement)}
    return dict.fromkeys(tenant_ids, MonthUse(0, 0, 0)) | found
