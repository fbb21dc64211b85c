"""Reads a tenant's usage in pages of time buckets, split by any of model, adapter, key and service tier.

Whole days and hours come from sums (``billing.usage.resolution``). Records are read only for buckets of a minute,
within a budget, and for the parts of an hour in which a range begins or ends.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import add, itemgetter
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col

from billing.prices import price_book
from billing.settings import USAGE_RECORDS_MAX, USAGE_ROWS_MAX
from billing.usage import resolution
from billing.usage.models import UsageHour
from billing.usage.resolution import Filters
from billing.usage.sums import hour_of
from core.contracts.grants import ServiceTier
from core.db import Instant
from core.errors import InvalidRequest
from core.periods import BUCKET_LENGTH, EPOCH, Bucket, Period, bucket_start

Dimension = Literal["model", "project_id", "api_key_id", "service_tier"]

DIMENSIONS: Final[dict[Dimension, str]] = {
    "model": "base_model", "project_id": "adapter_id", "api_key_id": "key_id", "service_tier": "service_tier",
}  # fmt: skip
"""The columns behind OpenAI's words: a project is an adapter, "" the base model itself."""

_HOUR: Final = timedelta(hours=1)
_PRICED: Final = ("price_version_id", "base_model", "rank_class", "service_tier")
_Priced = tuple[str, str, int, ServiceTier]
_COUNTS: Final = (
    "requests", "input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms",
    "input_nanos", "cached_input_nanos", "output_nanos", "kv_nanos",
)  # fmt: skip


class BucketQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. None in a filter stands for all; buckets are whole in UTC, except the first and the last one."""

    tenant_id: str
    period: Period
    width: Bucket
    group_by: tuple[Dimension, ...] = ()
    models: tuple[str, ...] | None = None
    adapter_ids: tuple[str, ...] | None = None
    key_ids: tuple[str, ...] | None = None


class UsagePosition(NamedTuple):
    """Where a page begins: in the bucket of ``start``, after the group ``after`` if a page ended within the bucket."""

    start: datetime
    after: tuple[str, ...] = ()


class UsageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group in the bucket that begins at ``start``. Only what was grouped by is set.

    ``cached_savings_nanos`` is what the cached tokens would have cost beyond their price, had they not been cached.
    """

    start: datetime
    requests: int
    input_tokens: int
    cached_tokens: int
    aborted_prefill_tokens: int
    output_tokens: int
    kv_page_ms: int
    input_nanos: int
    cached_input_nanos: int
    output_nanos: int
    kv_nanos: int
    cached_savings_nanos: int
    model: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    service_tier: str | None = None

    @property
    def amount_nanos(self) -> int:
        """What it costs."""
        return self.input_nanos + self.cached_input_nanos + self.output_nanos + self.kv_nanos


class UsagePage(NamedTuple):
    """The groups of a page in the order of time, the end of its last bucket, and where the next page begins."""

    groups: list[UsageGroup]
    until: datetime
    following: UsagePosition | None


def read_page(session: Session, query: BucketQuery, position: UsagePosition, *, buckets_max: int) -> UsagePage:
    """At most ``buckets_max`` buckets from ``position`` on. Pages of many groups end within a bucket, pages of minutes
    with many records earlier; the next page goes on there.
    """
    end = query.period.end
    until = min(end, bucket_start(position.start, query.width) + buckets_max * BUCKET_LENGTH[query.width])
    period = Period(position.start, until)
    if query.width == "1m":
        period = _within_budget(session, query.tenant_id, period)
    rows = session.connection().execute(_statement(query, period, position.after)).all()
    groups = _merged(session, query, rows[:USAGE_ROWS_MAX])
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
        sa.select(col(UsageHour.hour), sa.cast(sa.func.sum(col(UsageHour.requests)), sa.BigInteger))
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


def _statement(query: BucketQuery, period: Period, after: Sequence[str]) -> sa.Select[Any]:  # columns of several types
    filters = Filters(query.tenant_id, query.models, query.adapter_ids, query.key_ids)
    used = resolution.used(filters, period, query.width, _COUNTS)
    start = sa.func.greatest(
        sa.func.date_bin(BUCKET_LENGTH[query.width], used.c.at, EPOCH, type_=Instant),
        period.start,
        type_=Instant,
    )
    rows = sa.select(start.label("start"), *used.c).subquery("bucketed")
    keys = [rows.c.start, *(rows.c[DIMENSIONS[name]] for name in query.group_by)]
    priced = [rows.c[name] for name in _PRICED]
    sums = (sa.cast(sa.func.sum(rows.c[name]), sa.BigInteger).label(name) for name in _COUNTS)
    statement = sa.select(*dict.fromkeys([*keys, *priced]), *sums).group_by(*keys, *priced).order_by(*keys)
    if after:
        statement = statement.where(sa.tuple_(*keys) > sa.tuple_(sa.literal(period.start, keys[0].type), *after))
    return statement.limit(USAGE_ROWS_MAX + 1)


def _merged(session: Session, query: BucketQuery, rows: Sequence[sa.Row[Any]]) -> list[UsageGroup]:
    """One group of the rows with the same key, which differ in their prices."""
    if not rows:
        return []
    columns = {name: position for position, name in enumerate(rows[0]._fields)}
    key_of = itemgetter(*(columns[name] for name in ("start", *(DIMENSIONS[each] for each in query.group_by))))
    price_of = itemgetter(*(columns[name] for name in _PRICED))
    prices = _input_prices(session, {price_of(row) for row in rows})
    fields = ("start", *query.group_by)
    groups: list[UsageGroup] = []
    for key, same in groupby(rows, key=key_of):
        first, *others = same
        counts, savings = first[-len(_COUNTS) :], _saving(first, prices[price_of(first)], columns)
        for row in others:
            counts = tuple(map(add, counts, row[-len(_COUNTS) :]))
            savings += _saving(row, prices[price_of(row)], columns)
        owner = dict(zip(fields, key if query.group_by else (key,), strict=True))
        groups.append(UsageGroup(cached_savings_nanos=savings, **owner, **dict(zip(_COUNTS, counts, strict=True))))
    return groups


def _input_prices(session: Session, priced: Collection[_Priced]) -> dict[_Priced, int]:
    """The price of an input token that is not cached, by the columns of ``_PRICED``."""
    versions = price_book.versions_by_id(session, {version_id for version_id, *_ in priced})
    return {
        (version_id, model, rank, tier): versions[version_id].card.held(model, rank or None, tier).input_nanos
        for version_id, model, rank, tier in priced
    }


def _saving(row: sa.Row[Any], input_nanos: int, columns: Mapping[str, int]) -> int:
    saved: int = row[columns["cached_tokens"]] * input_nanos - row[columns["cached_input_nanos"]]
    return saved
