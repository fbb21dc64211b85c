"""What a tenant used, read from the usage records. Reports never change anything, and never look past one tenant."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlmodel import Session, col, select

from billing.models import UsageRecord
from billing.periods import BUCKET_LENGTH, EPOCH, Period, aware, bucket_count, month
from billing.settings import USAGE_BUCKETS_MAX, USAGE_ROWS_MAX
from billing.views import Bucket, GroupBy, UsageBucket
from core.errors import InvalidRequest


def usage(
    session: Session,
    *,
    tenant_id: str,
    start: datetime,
    end: datetime,
    bucket: Bucket,
    group_by: GroupBy | None = None,
) -> list[UsageBucket]:
    """One tenant's usage settled in ``[start, end)``, by UTC bucket and group; buckets without usage are left out."""
    period = _checked(Period(aware(start, "start"), aware(end, "end")), bucket)
    bucket_column: sa.ColumnElement[datetime] = sa.func.date_bin(
        BUCKET_LENGTH[bucket], col(UsageRecord.settled_at), EPOCH, type_=sa.DateTime(timezone=True)
    )
    groups: list[SQLCoreOperations[Any]] = []  # columns of any type
    match group_by:
        case "adapter":
            groups = [col(UsageRecord.base_model), col(UsageRecord.adapter_id)]
        case "base_model":
            groups = [col(UsageRecord.base_model)]
        case "key":
            groups = [col(UsageRecord.key_id)]
        case None:
            pass
    keys = [bucket_column.label("start"), *groups]
    statement = (
        sa.select(
            *keys,
            sa.func.count().label("requests"),
            _total(UsageRecord.input_tokens).label("input_tokens"),
            _total(UsageRecord.cached_tokens).label("cached_tokens"),
            _total(UsageRecord.output_tokens).label("output_tokens"),
            _total(UsageRecord.kv_page_ms).label("kv_page_ms"),
            _total(UsageRecord.amount_nanos).label("amount_nanos"),
        )
        .where(
            col(UsageRecord.tenant_id) == tenant_id,
            col(UsageRecord.settled_at) >= period.start,
            col(UsageRecord.settled_at) < period.end,
        )
        .group_by(*keys)
        .order_by(*keys)
        .limit(USAGE_ROWS_MAX + 1)
    )
    rows = session.connection().execute(statement).mappings().all()
    if len(rows) > USAGE_ROWS_MAX:
        raise InvalidRequest(
            f"the answer would have more than {USAGE_ROWS_MAX} rows; ask for a shorter range, a longer bucket "
            "or no group_by.",
            param="group_by",
        )
    return [UsageBucket(**row) for row in rows]


def month_tokens(session: Session, tenant_id: str, name: str) -> int:
    """Input plus output tokens settled in the UTC month ``"YYYY-MM"``."""
    period = month(name)
    statement = select(_total(UsageRecord.input_tokens) + _total(UsageRecord.output_tokens)).where(
        UsageRecord.tenant_id == tenant_id, UsageRecord.settled_at >= period.start, UsageRecord.settled_at < period.end
    )
    return session.exec(statement).one()


def _checked(period: Period, bucket: Bucket) -> Period:
    if period.start >= period.end:
        raise InvalidRequest(f"end is {period.end.isoformat()}, not after start; make it later.", param="end")
    if (buckets := bucket_count(period, bucket)) > USAGE_BUCKETS_MAX:
        raise InvalidRequest(
            f"{buckets} buckets of {bucket} lie between start and end; at most {USAGE_BUCKETS_MAX} are answered. "
            "Ask for a shorter range or a longer bucket.",
            param="bucket",
        )
    return period


def _total(column: int) -> sa.ColumnElement[int]:
    """Postgres sums bigint as numeric; tokens and nanodollars fit a bigint."""
    return sa.cast(sa.func.coalesce(sa.func.sum(col(column)), 0), sa.BigInteger)
