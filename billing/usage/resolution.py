"""Decides where reports read the usage of a period: whole days from the sums by day, whole hours from those by hour,
and the other minutes from records. So a report on a month costs its days and groups, not its requests.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from billing.usage.models import UsageDay, UsageHour, UsageNow, UsageRecord
from core.contracts.usage import REST
from core.periods import BUCKET_LENGTH, EPOCH, Bucket, Period

Table = type[UsageDay | UsageHour | UsageRecord]

_LENGTHS: Final[dict[Bucket, tuple[Bucket, ...]]] = {"1d": ("1d", "1h"), "1h": ("1h",), "1m": ()}
"""The sums that buckets of a width may be made of, the longest first."""


class Filters(NamedTuple):
    """Whose usage is read. None in a filter stands for all; an adapter of "" is the base model itself."""

    tenant_id: str
    models: tuple[str, ...] | None = None
    adapter_ids: tuple[str, ...] | None = None
    key_ids: tuple[str, ...] | None = None


def used(
    filters: Filters, period: Period, width: Bucket, counts: Sequence[str], *, also: Sequence[str] = ()
) -> sa.Subquery:
    """The usage of a period in rows with their instant ``at``, their owner, their price and ``counts``, fit for UTC
    buckets of ``width``. "" and 0 stand for no adapter and no rank class. ``also`` are columns that only records have,
    and so only buckets of a minute.
    """
    columns = (*counts, *also)
    return sa.union_all(*(_rows(filters, *source, columns) for source in _sources(period, width))).subquery("used")


def _sources(period: Period, width: Bucket) -> Iterator[tuple[Table, Any, list[Period]]]:
    open_parts = [period]
    for length in _LENGTHS[width]:
        whole = [each for each in (_whole(part, BUCKET_LENGTH[length]) for part in open_parts) if each.start < each.end]
        open_parts = [part for each in open_parts for part in _without(each, whole)]
        if whole:
            yield (UsageDay, col(UsageDay.day), whole) if length == "1d" else (UsageHour, col(UsageHour.hour), whole)
    if open_parts:
        yield UsageNow, col(UsageNow.settled_at), open_parts


def _whole(period: Period, length: timedelta) -> Period:
    """The whole hours or days within a period; none when the end is not after the start."""
    return Period(-((EPOCH - period.start) // length) * length + EPOCH, (period.end - EPOCH) // length * length + EPOCH)


def _without(period: Period, inner: Sequence[Period]) -> Iterator[Period]:
    """The parts of a period before and after those of ``inner`` that lie in it."""
    start = period.start
    for each in inner:
        if period.start <= each.start and each.end <= period.end:
            if start < each.start:
                yield Period(start, each.start)
            start = each.end
    if start < period.end:
        yield Period(start, period.end)


def _rows(
    filters: Filters,
    table: Table,
    at: Any,  # a column of instants
    periods: Sequence[Period],
    counts: Sequence[str],
) -> sa.Select[Any]:  # columns of several types
    """The rows of a table in the periods, with the columns of a sum."""
    adapter_id, rank_class = sa.func.coalesce(col(table.adapter_id), ""), sa.func.coalesce(col(table.rank_class), 0)
    rows: sa.Select[Any] = sa.select(
        at.label("at"),
        col(table.key_id).label("key_id"),
        col(table.base_model).label("base_model"),
        adapter_id.label("adapter_id"),
        rank_class.label("rank_class"),
        col(table.price_version_id).label("price_version_id"),
        col(table.service_tier).label("service_tier"),
        *(_count(table, name).label(name) for name in counts),
    ).where(
        col(table.tenant_id) == filters.tenant_id,
        sa.or_(*(sa.and_(at >= period.start, at < period.end) for period in periods)),
        *(
            column.in_(wanted)
            for column, wanted in (
                (col(table.base_model), filters.models),
                (adapter_id, filters.adapter_ids),
                (col(table.key_id), filters.key_ids),
            )
            if wanted is not None
        ),
    )
    return rows


def _count(table: Table, name: str) -> Any:  # an SQL expression
    if table is UsageNow and name == "requests":
        return sa.case((col(UsageNow.request_id).endswith(REST), 0), else_=1)
    if table is UsageNow and name == "estimated_requests":
        return sa.cast(col(UsageNow.estimated), sa.Integer)
    return col(getattr(table, name))
