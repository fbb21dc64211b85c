"""Reads a tenant's usage in time buckets, split by model, adapter, key, service tier, class or revision: as one answer
(``usage``) or in pages (``read_page``).

Whole days and hours come from sums (``billing.usage.resolution``). Records are read only for buckets of a minute, for
the parts of an hour in which a range begins or ends, and by revision or class. Reading changes nothing and never
includes another tenant.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import add, itemgetter
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import Grouping, SQLCoreOperations
from sqlmodel import Session, col

from billing.prices import price_book
from billing.prices.quantities import AMOUNTS, COUNTED
from billing.settings import USAGE_BUCKETS_MAX, USAGE_RECORDS_MAX, USAGE_ROWS_MAX
from billing.usage import resolution
from billing.usage.models import UsageHour
from billing.usage.resolution import Filters
from billing.usage.sums import hour_of
from billing.usage.views import GroupBy, Service
from core.contracts.grants import ServiceTier
from core.contracts.replicas import Tier
from core.contracts.usage import Outcome
from core.db import Instant, total
from core.errors import InvalidRequest
from core.periods import BUCKET_LENGTH, EPOCH, Bucket, Period, aware, bucket_count, bucket_start
from core.spend_windows import window_at

Dimension = Literal["base_model", "adapter_id", "key_id", "service_tier", "revision_id", "service_class"]
"""What usage is split by. An adapter of "" is the base model itself."""

_DIMENSIONS: Final[dict[GroupBy | None, tuple[Dimension, ...]]] = {
    None: (),
    "adapter": ("base_model", "adapter_id"),
    "base_model": ("base_model",),
    "key": ("key_id",),
    "revision": ("base_model", "adapter_id", "revision_id"),
    "service_class": ("service_class",),
}
_HOUR: Final = timedelta(hours=1)
_PRICED: Final = ("price_version_id", "base_model", "rank_class", "service_tier")
_Priced = tuple[str, str, int, ServiceTier]
_SUMS: Final = ("requests", "estimated_requests", *COUNTED, *AMOUNTS)
_SERVED: Final = (
    "revision_id", "service_class", "outcome", "adapter_tier", "first_token_ms", "duration_ms", "stall_ms",
)  # fmt: skip
_PERCENTILES: Final = {"p50": 50, "p99": 99}
_OUTCOMES: Final = get_args(Outcome)
_TIERS: Final = get_args(Tier)
_FIRST_TOKEN_MS: Final = 500  # the goal of an interactive stream
_WHOLE_MS: Final = 10_000  # of an interactive answer in one piece
_SHORT_MS: Final = 1_000  # of a near-real-time answer, whole


class BucketQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. None in a filter stands for all. Days are those of the IANA time ``zone``, of 23 to 25 hours;
    minutes and hours are those of UTC.
    """

    tenant_id: str
    period: Period
    width: Bucket
    group_by: tuple[Dimension, ...] = ()
    zone: str = "UTC"
    models: tuple[str, ...] | None = None
    adapter_ids: tuple[str, ...] | None = None
    key_ids: tuple[str, ...] | None = None


class UsagePosition(NamedTuple):
    """Where a page begins: in the bucket of ``start``, after the group ``after`` if a page ended within the bucket."""

    start: datetime
    after: tuple[str, ...] = ()


class UsageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group in the bucket that begins at ``start``. Only the ids that were grouped by are set, and
    ``service`` by revision or class. ``input_tokens`` includes cached ones and ``aborted_prefill_tokens``, which are
    prompt tokens of requests that were aborted before their first token. ``estimated_requests`` are those whose gateway
    died, charged by their last checkpoint.

    ``cached_savings_nanos`` is what the cached tokens would have cost beyond their price, had they not been cached. It
    is read with pages only.
    """

    start: datetime
    requests: int
    estimated_requests: int
    input_tokens: int
    cached_tokens: int
    aborted_prefill_tokens: int
    output_tokens: int
    kv_page_ms: int
    input_nanos: int
    cached_input_nanos: int
    output_nanos: int
    kv_nanos: int
    cached_savings_nanos: int = 0
    base_model: str | None = None
    adapter_id: str | None = None
    key_id: str | None = None
    service_tier: str | None = None
    revision_id: str | None = None
    service_class: str | None = None
    service: Service | None = None

    @property
    def amount_nanos(self) -> int:
        """What it costs."""
        return self.input_nanos + self.cached_input_nanos + self.output_nanos + self.kv_nanos


class UsagePage(NamedTuple):
    """The groups of a page in the order of time, the end of its last bucket, and where the next page begins."""

    groups: list[UsageGroup]
    until: datetime
    following: UsagePosition | None


def usage(
    session: Session,
    *,
    tenant_id: str,
    start: datetime,
    end: datetime,
    bucket: Bucket,
    group_by: GroupBy | None = None,
    zone: str = "UTC",
) -> list[UsageGroup]:
    """One tenant's usage settled in ``[start, end)``, by bucket and group; buckets without usage are left out."""
    period = _checked(Period(aware(start, "start"), aware(end, "end")), bucket)
    query = BucketQuery(tenant_id=tenant_id, period=period, width=bucket, group_by=_DIMENSIONS[group_by], zone=zone)
    rows = session.connection().execute(_statement(query, period)).mappings().all()
    if len(rows) > USAGE_ROWS_MAX:
        raise InvalidRequest(
            f"the answer would have more than {USAGE_ROWS_MAX} rows; ask for a shorter range, a longer bucket "
            "or no group_by.",
            param="group_by",
        )
    return [
        UsageGroup(**{name: value for name, value in row.items() if "." not in name}, service=_service(dict(row)))
        for row in rows
    ]


def read_page(session: Session, query: BucketQuery, position: UsagePosition, *, buckets_max: int) -> UsagePage:
    """At most ``buckets_max`` buckets of UTC from ``position`` on; the first begins there. Pages of many groups end
    within a bucket, pages of minutes with many records earlier; the next page goes on there.
    """
    end = query.period.end
    until = min(end, bucket_start(position.start, query.width) + buckets_max * BUCKET_LENGTH[query.width])
    period = Period(position.start, until)
    if query.width == "1m":
        period = _within_budget(session, query.tenant_id, period)
    rows = session.connection().execute(_statement(query, period, _PRICED, position.after)).all()
    groups = list(_merged(session, query, rows[:USAGE_ROWS_MAX], period.start))
    if len(rows) > USAGE_ROWS_MAX:
        return _cut(query, groups)
    return UsagePage(groups, period.end, UsagePosition(period.end) if period.end < end else None)


def _cut(query: BucketQuery, groups: Sequence[UsageGroup]) -> UsagePage:
    """A page without its last group, which may have further rows."""
    *kept, last = groups
    if not kept:
        raise InvalidRequest(
            "group_by: one bucket has too many prices to add up; group by model or ask for a shorter bucket_width.",
            param="group_by",
        )
    ended = bucket_start(kept[-1].start, query.width) + BUCKET_LENGTH[query.width]
    same_bucket = kept[-1].start == last.start
    after = tuple(getattr(kept[-1], name) for name in query.group_by) if same_bucket else ()
    return UsagePage(kept, min(ended, query.period.end), UsagePosition(last.start if same_bucket else ended, after))


def _within_budget(session: Session, tenant_id: str, period: Period) -> Period:
    """The period up to the end of the hour with which its records fill the budget. It holds an hour at least."""
    hours = session.connection().execute(
        sa.select(col(UsageHour.hour), total(UsageHour.requests))
        .where(
            col(UsageHour.tenant_id) == tenant_id,
            col(UsageHour.hour) >= hour_of(period.start),
            col(UsageHour.hour) < period.end,
        )
        .group_by(col(UsageHour.hour))
        .order_by(col(UsageHour.hour))
    )
    read, until = 0, period.end
    for hour, requests in hours:
        if read and read + requests > USAGE_RECORDS_MAX:
            until = hour
            break
        read += requests
    return Period(period.start, max(until, min(hour_of(period.start) + _HOUR, period.end)))


def _statement(
    query: BucketQuery, period: Period, priced: Sequence[str] = (), after: Sequence[str] = ()
) -> sa.Select[Any]:  # columns of several types
    """The sums by bucket, group and the columns of ``priced``, after the group ``after`` of the first bucket."""
    days = _midnights(period, query.zone) if query.width == "1d" and query.zone != "UTC" else []
    of_records = not {"revision_id", "service_class"}.isdisjoint(query.group_by)  # and how a request was served
    width: Bucket = "1m" if of_records else _summed_width(query.width, days)
    filters = Filters(query.tenant_id, query.models, query.adapter_ids, query.key_ids)
    used = resolution.used(filters, period, width, _SUMS, also=_SERVED if of_records else ())
    rows = sa.select(_bucket_start(used.c.at, query.width, days), *used.c).subquery("bucketed")
    keys = [rows.c.start, *(rows.c[name] for name in query.group_by)]
    every = list(dict.fromkeys([*keys, *(rows.c[name] for name in priced)]))
    sums = (total(rows.c[name]).label(name) for name in _SUMS)
    service = _service_columns(rows) if of_records else ()
    statement = sa.select(*every, *sums, *service).group_by(*every).order_by(*keys).limit(USAGE_ROWS_MAX + 1)
    if not after:
        return statement
    first = sa.literal(bucket_start(period.start, query.width), keys[0].type)
    return statement.where(sa.tuple_(*keys) > sa.tuple_(first, *after))


def _summed_width(bucket: Bucket, days: Sequence[datetime]) -> Bucket:
    """The width of the sums that make buckets. A local day is made of hours, if each begins with an hour of UTC."""
    if not days:
        return bucket
    return "1h" if all(hour_of(each) == each for each in days[1:]) else "1m"


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


def _service_columns(rows: sa.Subquery) -> list[sa.Label[Any]]:  # columns of several types
    """The columns of ``Service``, named by its fields."""
    in_time = sa.case(
        (rows.c.service_class == "near_real_time", rows.c.duration_ms < _SHORT_MS),
        (rows.c.service_class == "interactive",
         sa.func.coalesce(rows.c.first_token_ms < _FIRST_TOKEN_MS, rows.c.duration_ms < _WHOLE_MS)),
    )  # fmt: skip
    judged = sa.and_(in_time.is_not(None), rows.c.outcome != "client_gone", rows.c.requests > 0)
    columns: list[sa.Label[Any]] = [
        total(rows.c.stall_ms).label("service.stall_ms"),
        sa.func.count().filter(judged).label("service.goal_requests"),
        sa.func.count().filter(judged, in_time, rows.c.outcome == "done").label("service.goal_met_requests"),
    ]
    for name, percent in _PERCENTILES.items():
        percentile = sa.func.percentile_disc(sa.literal_column(f"{percent} / 100.0"))  # disc: a value that was measured
        columns += [
            percentile.within_group(rows.c.first_token_ms).label(f"service.first_token_ms_{name}"),
            percentile.within_group(rows.c.duration_ms)
            .filter(rows.c.outcome == "done")
            .label(f"service.duration_ms_{name}"),
        ]
    for field, column, values in (("outcomes", rows.c.outcome, _OUTCOMES), ("tiers", rows.c.adapter_tier, _TIERS)):
        columns += [
            sa.func.count().filter(column == value, rows.c.requests > 0).label(f"service.{field}.{value}")
            for value in values
        ]
    return columns


def _service(row: Mapping[str, Any]) -> Service | None:  # columns of several types
    said = {name.removeprefix("service."): value for name, value in row.items() if name.startswith("service.")}
    if not said:
        return None
    return Service(
        stall_ms=said["stall_ms"],
        goal_requests=said["goal_requests"],
        goal_met_requests=said["goal_met_requests"],
        outcomes={name: said[f"outcomes.{name}"] for name in _OUTCOMES if said[f"outcomes.{name}"]},
        tiers={name: said[f"tiers.{name}"] for name in _TIERS if said[f"tiers.{name}"]},
        **{name: value for name, value in said.items() if name.rpartition("_")[2] in _PERCENTILES},
    )


def _merged(
    session: Session, query: BucketQuery, rows: Sequence[sa.Row[Any]], begins: datetime
) -> Iterator[UsageGroup]:
    """One group of the rows with the same key, which differ in their prices. The first bucket begins at ``begins``."""
    if not rows:
        return
    columns = {name: position for position, name in enumerate(rows[0]._fields)}
    fields = ("start", *query.group_by)
    key_of = itemgetter(*(columns[name] for name in fields), columns["start"])  # twice, so that it is a tuple
    price_of = itemgetter(*(columns[name] for name in _PRICED))
    cached, cached_nanos = columns["cached_tokens"], columns["cached_input_nanos"]
    prices = _input_prices(session, {price_of(row) for row in rows})
    for key, same in groupby(rows, key=key_of):
        sums, savings = (0,) * len(_SUMS), 0
        for row in same:
            sums = tuple(map(add, sums, row[-len(_SUMS) :]))
            savings += row[cached] * prices[price_of(row)] - row[cached_nanos]
        found: dict[str, Any] = dict(zip((*fields, *_SUMS), (*key[:-1], *sums), strict=True))  # ids and integers
        found["start"] = max(found["start"], begins)
        yield UsageGroup(cached_savings_nanos=savings, **found)


def _input_prices(session: Session, priced: Collection[_Priced]) -> dict[_Priced, int]:
    """The price of an input token that is not cached, by the columns of ``_PRICED``."""
    versions = price_book.versions_by_id(session, {version_id for version_id, *_ in priced})
    return {
        (version_id, model, rank, tier): versions[version_id].card.highest_prices(model, rank or None, tier).input_nanos
        for version_id, model, rank, tier in priced
    }
