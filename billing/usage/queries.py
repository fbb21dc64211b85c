"""Reports what a tenant used, from the sums by hour, day and month. Only reports by the minute, in part of an hour or
by revision read records. Reports change nothing and never include another tenant.
"""

import functools
import operator
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import Grouping, SQLCoreOperations
from sqlmodel import Session, col, select

from billing.settings import USAGE_BUCKETS_MAX, USAGE_ROWS_MAX
from billing.usage import resolution
from billing.usage.models import UsageMonth, UsageNow
from billing.usage.resolution import Filters
from billing.usage.sums import hour_of
from billing.usage.views import GroupBy, Service, UsageBucket
from core.contracts.replicas import Tier
from core.contracts.usage import REST, Outcome
from core.db import Instant, among, database_now
from core.errors import InvalidRequest
from core.periods import BUCKET_LENGTH, EPOCH, Bucket, Period, aware, bucket_count, month, month_start
from core.spend_windows import window_at


class MonthUse(NamedTuple):
    """Tokens, the cached ones among them, and nanodollars of a tenant in one month."""

    tokens: int
    cached_tokens: int
    amount_nanos: int


_PERCENTILES: Final = {"p50": 50, "p99": 99}
_OUTCOMES: Final = get_args(Outcome)
_TIERS: Final = get_args(Tier)
_QUANTITIES: Final = ("input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms")
_COUNTED: Final = ("requests", "estimated_requests", *_QUANTITIES)
_NANOS: Final = ("input_nanos", "cached_input_nanos", "output_nanos", "kv_nanos")


def usage(
    session: Session,
    *,
    tenant_id: str,
    start: datetime,
    end: datetime,
    bucket: Bucket,
    group_by: GroupBy | None = None,
    zone: str = "UTC",
) -> list[UsageBucket]:
    """One tenant's usage settled in ``[start, end)``, by bucket and group; buckets without usage are left out. Days are
    those of the IANA time ``zone``, of 23 to 25 hours; minutes and hours are those of UTC.
    """
    period = _checked(Period(aware(start, "start"), aware(end, "end")), bucket)
    days = _midnights(period, zone) if bucket == "1d" and zone != "UTC" else []
    if group_by == "revision":
        keys, statement = _by_revision(tenant_id, period, bucket, days)
    else:
        keys, statement = _by_owner(tenant_id, period, bucket, days, group_by)
    statement = statement.group_by(*keys).order_by(*keys).limit(USAGE_ROWS_MAX + 1)
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
    statement = select(_total(UsageMonth.input_tokens) + _total(UsageMonth.output_tokens)).where(
        UsageMonth.tenant_id == tenant_id, UsageMonth.month == month(name).start
    )
    return session.exec(statement).one()


def charged_before_month(session: Session, tenant_ids: Collection[str]) -> dict[str, int]:
    """Nanodollars that each of these tenants was charged before the current UTC month, by the database's clock."""
    began = month_start(database_now(session))
    statement = (
        select(UsageMonth.tenant_id, _total(UsageMonth.amount_nanos))
        .where(among(col(UsageMonth.tenant_id), tenant_ids), col(UsageMonth.month) < began)
        .group_by(col(UsageMonth.tenant_id))
    )
    return dict.fromkeys(tenant_ids, 0) | dict(session.exec(statement).all())


def month_uses(session: Session, tenant_ids: Collection[str]) -> dict[str, MonthUse]:
    """What each of these tenants used and was charged in the current UTC month, by the database's clock."""
    statement = (
        select(
            UsageMonth.tenant_id,
            _total(UsageMonth.input_tokens) + _total(UsageMonth.output_tokens),
            _total(UsageMonth.cached_tokens),
            _total(UsageMonth.amount_nanos),
        )
        .where(col(UsageMonth.tenant_id).in_(tenant_ids), UsageMonth.month == month_start(database_now(session)))
        .group_by(col(UsageMonth.tenant_id))
    )
    found = {tenant_id: MonthUse(*sums) for tenant_id, *sums in session.exec(statement)}
    return dict.fromkeys(tenant_ids, MonthUse(0, 0, 0)) | found


def _by_owner(
    tenant_id: str, period: Period, bucket: Bucket, days: Sequence[datetime], group_by: GroupBy | None
) -> tuple[list[SQLCoreOperations[Any]], sa.Select[Any]]:
    """The keys and the sums of usage by bucket and adapter, model, key or nothing."""
    used = resolution.used(Filters(tenant_id), period, _summed_width(bucket, days), (*_COUNTED, *_NANOS)).c
    groups: dict[GroupBy | None, list[SQLCoreOperations[Any]]] = {
        "adapter": [used.base_model, sa.func.nullif(used.adapter_id, "").label("adapter_id")],
        "base_model": [used.base_model],
        "key": [used.key_id],
    }
    keys: list[SQLCoreOperations[Any]] = [_bucket_start(used.at, bucket, days), *groups.get(group_by, ())]
    nanos = (_sum(used[name]) for name in _NANOS)
    amount = functools.reduce(operator.add, nanos)
    return keys, sa.select(*keys, *(_sum(used[name]).label(name) for name in _COUNTED), amount.label("amount_nanos"))


def _summed_width(bucket: Bucket, days: Sequence[datetime]) -> Bucket:
    """The width of the sums that make buckets. A local day is made of hours, if each begins with an hour of UTC."""
    if not days:
        return bucket
    return "1h" if all(hour_of(each) == each for each in days[1:]) else "1m"


def _by_revision(
    tenant_id: str, period: Period, bucket: Bucket, days: Sequence[datetime]
) -> tuple[list[SQLCoreOperations[Any]], sa.Select[Any]]:
    """The same by revision, with how it served: from the records, which alone say that."""
    keys: list[SQLCoreOperations[Any]] = [
        _bucket_start(col(UsageNow.settled_at), bucket, days),
        col(UsageNow.base_model),
        col(UsageNow.adapter_id),
        col(UsageNow.revision_id),
    ]
    statement = (
        sa.select(
            *keys,
            sa.func.count().filter(_is_request()).label("requests"),
            sa.func.count().filter(col(UsageNow.estimated)).label("estimated_requests"),
            *(_total(getattr(UsageNow, name)).label(name) for name in (*_QUANTITIES, "amount_nanos")),
            *_service_columns(),
        )
        .select_from(UsageNow)
        .where(
            col(UsageNow.tenant_id) == tenant_id,
            col(UsageNow.settled_at) >= period.start,
            col(UsageNow.settled_at) < period.end,
        )
    )
    return keys, statement


def _midnights(period: Period, zone: str) -> list[datetime]:
    """The starts of the local days that a period touches, in order."""
    found = [window_at(zone, "day", period.start).start]
    while (following := window_at(zone, "day", found[-1]).end) < period.end:
        found.append(following)
    return found


def _bucket_start(
    instant: SQLCoreOperations[datetime], bucket: Bucket, days: Sequence[datetime]
) -> sa.ColumnElement[datetime]:
    if days:
        starts = sa.literal(list(days), ARRAY(Instant))
        day: sa.ColumnElement[datetime] = Grouping(starts)[sa.func.width_bucket(instant, starts)]
        return day.label("start")
    start: sa.ColumnElement[datetime] = sa.func.date_bin(BUCKET_LENGTH[bucket], instant, EPOCH, type_=Instant)
    return start.label("start")


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
    done = col(UsageNow.outcome) == "done"
    first_token, duration = col(UsageNow.first_token_ms), col(UsageNow.duration_ms)
    columns: list[sa.Label[Any]] = [_total(UsageNow.stall_ms).label("service.stall_ms")]
    for name, percent in _PERCENTILES.items():
        percentile = sa.func.percentile_disc(sa.literal_column(f"{percent} / 100.0"))  # disc: a value that was measured
        columns += [
            percentile.within_group(first_token).label(f"service.first_token_ms_{name}"),
            percentile.within_group(duration).filter(done).label(f"service.duration_ms_{name}"),
        ]
    for field, column, values in (
        ("outcomes", UsageNow.outcome, _OUTCOMES),
        ("tiers", UsageNow.adapter_tier, _TIERS),
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
    return ~col(UsageNow.request_id).endswith(REST)


def _total(column: int) -> sa.ColumnElement[int]:
    return _sum(col(column))


def _sum(values: SQLCoreOperations[int]) -> sa.ColumnElement[int]:
    """Postgres sums bigint as numeric; tokens and nanodollars fit a bigint."""
    return sa.cast(sa.func.coalesce(sa.func.sum(values), 0), sa.BigInteger)
