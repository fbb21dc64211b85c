"""Usage and costs of a tenant in OpenAI's shapes, as pages of buckets or as CSV. ``billing.usage.buckets`` reads.

OpenAI's organization is the tenant, its project an adapter, and its model a base model. Costs are those of usage, as
recorded: before tiers, discounts, credits and tax, which are on invoices.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, TypeVar

import msgspec
from sqlalchemy import Engine

from billing.prices.quantities import QUANTITIES
from billing.usage.buckets import BucketQuery, Dimension, UsageGroup, UsagePosition, read_page
from control_plane.usage.organization_schemas import (
    BucketPage,
    CompletionsCosts,
    CompletionsUsage,
    CostAmount,
    CostItemGrouping,
    TimeBucket,
    UsageGrouping,
)
from control_plane.usage.page_cursor import decode_position, encode_position
from core import clock
from core.csv_lines import csv_line, dollar_text, dollars
from core.db import unit_of_work
from core.errors import InvalidRequest
from core.periods import BUCKET_LENGTH, YEAR_FIRST, YEAR_LAST, Bucket, Period, bucket_start
from core.struct_types import view_of

T = TypeVar("T")

USAGE_LIMITS: Final[dict[Bucket, tuple[int, int]]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
COST_LIMITS: Final[dict[Bucket, tuple[int, int]]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 180)}
"""Buckets of a page by default and at most, by width, as OpenAI has them."""

_DIMENSIONS: Final[dict[UsageGrouping | CostItemGrouping, Dimension]] = {
    "model": "base_model", "line_item": "base_model", "project_id": "adapter_id", "api_key_id": "key_id",
    "service_tier": "service_tier",
}  # fmt: skip
"""What OpenAI's words group by: a project is an adapter, a line item a kind of usage of a base model."""

_USAGE_COLUMNS: Final = (
    "start_time", "end_time", "model", "project_id", "api_key_id", "num_model_requests", "input_tokens",
    "input_cached_tokens", "output_tokens", "kv_page_ms", "amount_usd", "cached_savings_usd", "service_tier",
)  # fmt: skip
_COST_COLUMNS: Final = (
    "start_time", "end_time", "line_item", "project_id", "api_key_id", "quantity", "quantity_unit", "amount_usd",
)  # fmt: skip


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a report, as sent. ``limit`` and ``page`` may differ between pages."""

    kind: Literal["usage", "costs"]
    tenant_id: str
    start_time: int
    end_time: int | None
    width: Bucket
    group_by: tuple[UsageGrouping | CostItemGrouping, ...] = ()
    models: tuple[str, ...] | None = None
    project_ids: tuple[str, ...] | None = None
    api_key_ids: tuple[str, ...] | None = None
    line_items: tuple[str, ...] | None = None


def usage_page(
    engine: Engine, request: ReportRequest, *, limit: int | None, page: str | None
) -> BucketPage[CompletionsUsage]:
    """A page of usage. Raises InvalidRequest."""
    return _page(engine, request, limit, page, lambda group: [_usage(group)])


def cost_page(
    engine: Engine, request: ReportRequest, *, limit: int | None, page: str | None
) -> BucketPage[CompletionsCosts]:
    """A page of costs. Raises InvalidRequest."""
    return _page(engine, request, limit, page, lambda group: _costs(group, request))


def usage_csv(engine: Engine, request: ReportRequest, *, days_max: int) -> Iterator[str]:
    """All usage of the range as CSV, in pieces. Raises InvalidRequest before the first one."""
    return _csv(engine, request, days_max, _USAGE_COLUMNS, lambda group: [_usage_cells(_usage(group))])


def cost_csv(engine: Engine, request: ReportRequest, *, days_max: int) -> Iterator[str]:
    """All costs of the range as CSV, in pieces. Raises InvalidRequest before the first one."""
    return _csv(
        engine, request, days_max, _COST_COLUMNS, lambda group: [_cost_cells(each) for each in _costs(group, request)]
    )


def _page(
    engine: Engine,
    request: ReportRequest,
    limit: int | None,
    page: str | None,
    results: Callable[[UsageGroup], Sequence[T]],
) -> BucketPage[T]:
    query = _query(request)
    position = UsagePosition(query.period.start)
    if page is not None:
        position, end = decode_position(page, query.period, request, groups=len(query.group_by))
        query = msgspec.structs.replace(query, period=Period(query.period.start, end))
    with unit_of_work(engine) as session:
        found = read_page(session, query, position, buckets_max=_limit(request, limit))
    by_start: dict[datetime, list[T]] = {}
    for group in found.groups:
        by_start.setdefault(group.start, []).extend(results(group))
    data = [
        TimeBucket(start_time=_seconds(start), end_time=_seconds(end), results=by_start.get(start, []))
        for start, end in _buckets(Period(position.start, found.until), request.width)
    ]
    following = found.following
    return BucketPage(
        data=data,
        has_more=following is not None,
        next_page=None if following is None else encode_position(following, query.period.end, request),
    )


def _csv(
    engine: Engine,
    request: ReportRequest,
    days_max: int,
    columns: Sequence[str],
    rows: Callable[[UsageGroup], Sequence[Sequence[str | int | Decimal | None]]],
) -> Iterator[str]:
    query = _query(request)
    if query.period.end - query.period.start > timedelta(days=days_max):
        raise InvalidRequest(
            f"start_time: one CSV file may cover at most {days_max} days. Ask for a shorter range.", param="start_time"
        )
    buckets_max = COST_LIMITS[request.width][1]

    def pieces() -> Iterator[str]:
        yield csv_line(columns)
        position: UsagePosition | None = UsagePosition(query.period.start)
        while position is not None:  # a transaction for each page: a slow reader holds no connection
            with unit_of_work(engine) as session:
                found = read_page(session, query, position, buckets_max=buckets_max)
            for group in found.groups:
                end = min(bucket_start(group.start, request.width) + BUCKET_LENGTH[request.width], query.period.end)
                for cells in rows(group):
                    yield csv_line([_iso(group.start), _iso(end), *cells])
            position = found.following

    return pieces()


def _query(request: ReportRequest) -> BucketQuery:
    start = _instant(request.start_time, "start_time")
    if request.end_time is None:
        end = bucket_start(clock.now(), "1h") + timedelta(hours=1)
        if end <= start:
            raise InvalidRequest("start_time: is in the future. Use an earlier one.", param="start_time")
    else:
        end = _instant(request.end_time, "end_time")
    if end <= start:
        raise InvalidRequest("end_time: must be later than start_time.", param="end_time")
    _check_line_items(request)
    words = sorted(request.group_by, key=lambda each: each == "line_item")
    return BucketQuery(
        tenant_id=request.tenant_id,
        period=Period(start, end),
        width=request.width,
        group_by=tuple(dict.fromkeys(_DIMENSIONS[each] for each in words)),
        models=_models(request),
        adapter_ids=request.project_ids,
        key_ids=request.api_key_ids,
    )


def _check_line_items(request: ReportRequest) -> None:
    if request.line_items is None:
        return
    if "line_item" not in request.group_by:
        raise InvalidRequest("line_items: add group_by=line_item to choose among them.", param="line_items")
    for item in request.line_items:
        if item.rpartition(", ")[2] not in QUANTITIES:
            raise InvalidRequest(
                f'line_items: write "MODEL, KIND", as group_by=line_item shows them. Kinds: {", ".join(QUANTITIES)}.',
                param="line_items",
            )


def _models(request: ReportRequest) -> tuple[str, ...] | None:
    if request.line_items is None:
        return request.models
    return tuple(sorted({item.rpartition(", ")[0] for item in request.line_items}))


def _limit(request: ReportRequest, limit: int | None) -> int:
    default, most = (USAGE_LIMITS if request.kind == "usage" else COST_LIMITS)[request.width]
    if limit is not None and not 1 <= limit <= most:
        raise InvalidRequest(
            f"limit: with bucket_width={request.width} a page has 1 to {most} buckets, {default} by default.",
            param="limit",
        )
    return limit or default


def _instant(unix_s: int, param: str) -> datetime:
    if not _year_start(YEAR_FIRST) <= unix_s < _year_start(YEAR_LAST):
        raise InvalidRequest(
            f"{param}: write Unix seconds of a year from {YEAR_FIRST} to {YEAR_LAST - 1}, not milliseconds.",
            param=param,
        )
    return clock.from_ms(unix_s * 1000)


def _year_start(year: int) -> int:
    return _seconds(datetime(year, 1, 1, tzinfo=UTC))


def _buckets(period: Period, width: Bucket) -> Iterator[Period]:
    start = period.start
    while start < period.end:
        end = min(bucket_start(start, width) + BUCKET_LENGTH[width], period.end)
        yield Period(start, end)
        start = end


def _usage(group: UsageGroup) -> CompletionsUsage:
    return view_of(
        group,
        CompletionsUsage,
        input_cached_tokens=group.cached_tokens,
        input_uncached_tokens=group.input_tokens - group.cached_tokens,
        num_model_requests=group.requests,
        model=group.base_model,
        project_id=group.adapter_id,
        api_key_id=group.key_id,
    )


def _costs(group: UsageGroup, request: ReportRequest) -> list[CompletionsCosts]:
    if "line_item" not in request.group_by:
        return [_cost(group, group.amount_nanos)]
    used = msgspec.structs.asdict(group)
    return [
        msgspec.structs.replace(
            _cost(group, used[quantity.amount]),
            line_item=f"{group.base_model}, {kind}",
            quantity=quantity.in_units(quantity.counted(used)),
            quantity_unit="page_seconds" if quantity.unit == "page_second" else "tokens",
        )
        for kind, quantity in QUANTITIES.items()
        if quantity.counted(used)
        and (request.line_items is None or f"{group.base_model}, {kind}" in request.line_items)
    ]


def _cost(group: UsageGroup, nanos: int) -> CompletionsCosts:
    return CompletionsCosts(
        amount=CostAmount(value=dollars(nanos), value_exact=dollar_text(nanos)),
        amount_nanos=nanos,
        project_id=group.adapter_id,
        api_key_id=group.key_id,
    )


def _usage_cells(row: CompletionsUsage) -> tuple[str | int | Decimal | None, ...]:
    return (
        row.model, row.project_id, row.api_key_id, row.num_model_requests, row.input_tokens, row.input_cached_tokens,
        row.output_tokens, row.kv_page_ms, dollars(row.amount_nanos), dollars(row.cached_savings_nanos),
        row.service_tier,
    )  # fmt: skip


def _cost_cells(row: CompletionsCosts) -> tuple[str | int | Decimal | None, ...]:
    return (
        row.line_item, row.project_id, row.api_key_id, row.quantity, row.quantity_unit, dollars(row.amount_nanos),
    )  # fmt: skip


def _seconds(instant: datetime) -> int:
    return int(instant.timestamp())


def _iso(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"
