"""Reports what a tenant used, from the usage records. Reports change nothing and never include another tenant."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, get_args

import sqlalchemy as sa
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlmodel import Session, col, select

from billing.models import UsageRecord
from billing.periods import BUCKET_LENGTH, EPOCH, Period, aware, bucket_count, month
from billing.settings import USAGE_BUCKETS_MAX, USAGE_ROWS_MAX
from billing.views import Bucket, GroupBy, Service, UsageBucket
from core.contracts.replicas import Tier
from core.contracts.usage import REST, Outcome
from core.db import database_now
from core.errors import InvalidRequest

_PERCENTILES: Final = {"p50": 50, "p99": 99}
_OUTCOMES: Final = get_args(Outcome)
_TIERS: Final = get_args(Tier)


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
        case "revision":
            groups = [col(UsageRecord.base_model), col(UsageRecord.adapter_id), col(UsageRecord.revision_id)]
        case "key":
            groups = [col(UsageRecord.key_id)]
        case None:
            pass
    keys = [bucket_column.label("start"), *groups]
    statement = (
        sa.select(
            *keys,
            sa.func.count().filter(_is_request()).label("requests"),
            sa.func.count().filter(col(UsageRecord.estimated)).label("estimated_requests"),
            _total(UsageRecord.input_tokens).label("input_tokens"),
            _total(UsageRecord.cached_tokens).label("cached_tokens"),
            _total(UsageRecord.aborted_prefill_tokens).label("aborted_prefill_tokens"),
            _total(UsageRecord.output_tokens).label("output_tokens"),
            _total(UsageRecord.kv_page_ms).label("kv_page_ms"),
            _total(UsageRecord.amount_nanos).label("amount_nanos"),
            *(_service_columns() if group_by == "revision" else ()),
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
    return [_bucket(dict(row)) for row in rows]


def month_tokens(session: Session, tenant_id: str, name: str) -> int:
    """Input plus output tokens settled in the UTC month ``"YYYY-MM"``."""
    period = month(name)
    statement = select(_total(UsageRecord.input_tokens) + _total(UsageRecord.output_tokens)).where(
        UsageRecord.tenant_id == tenant_id, UsageRecord.settled_at >= period.start, UsageRecord.settled_at < period.end
    )
    return session.exec(statement).one()


def charged_before_month(session: Session, tenant_ids: Collection[str]) -> dict[str, int]:
    """Nanodollars that each of these tenants was charged before the current UTC month, by the database's clock."""
    began = database_now(session).astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    statement = (
        select(UsageRecord.tenant_id, _total(UsageRecord.amount_nanos))
        .where(col(UsageRecord.tenant_id).in_(tenant_ids), col(UsageRecord.settled_at) < began)
        .group_by(col(UsageRecord.tenant_id))
    )
    return dict.fromkeys(tenant_ids, 0) | dict(session.exec(statement).all())


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


def _service_columns() -> list[sa.Label[Any]]:  # columns of several types
    """The columns of ``Service``, named by its fields."""
    done = col(UsageRecord.outcome) == "done"
    first_token, duration = col(UsageRecord.first_token_ms), col(UsageRecord.duration_ms)
    columns: list[sa.Label[Any]] = [_total(UsageRecord.stall_ms).label("service.stall_ms")]
    for name, percent in _PERCENTILES.items():
        percentile = sa.func.percentile_disc(sa.literal_column(f"{percent} / 100.0"))  # disc: a value that was measured
        columns += [
            percentile.within_group(first_token).label(f"service.first_token_ms_{name}"),
            percentile.within_group(duration).filter(done).label(f"service.duration_ms_{name}"),
        ]
    for field, column, values in (
        ("outcomes", UsageRecord.outcome, _OUTCOMES),
        ("tiers", UsageRecord.adapter_tier, _TIERS),
    ):
        columns += [
            sa.func.count().filter(col(column) == value, _is_request()).label(f"service.{field}.{value}")
            for value in values
        ]
    return columns


def _bucket(row: dict[str, Any]) -> UsageBucket:  # columns of several types
    plain = {name: value for name, value in row.items() if not name.startswith("service.")}
    said = {name.removeprefix("service."): value for name, value in row.items() if name.startswith("service.")}
    if not said:
        return UsageBucket(**plain)
    return UsageBucket(
        **plain,
        service=Service(
            stall_ms=said["stall_ms"],
            outcomes={name: said[f"outcomes.{name}"] for name in _OUTCOMES if said[f"outcomes.{name}"]},
            tiers={name: said[f"tiers.{name}"] for name in _TIERS if said[f"tiers.{name}"]},
            **{name: value for name, value in said.items() if name.rpartition("_")[2] in _PERCENTILES},
        ),
    )


def _is_request() -> sa.ColumnElement[bool]:
    """Whether a record is the first of its request: not the rest of an estimated one."""
    return ~col(UsageRecord.request_id).endswith(REST)


def _total(column: int) -> sa.ColumnElement[int]:
    """Postgres sums bigint as numeric; tokens and nanodollars fit a bigint."""
    return sa.cast(sa.func.coalesce(sa.func.sum(col(column)), 0), sa.BigInteger)
