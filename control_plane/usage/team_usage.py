"""A tenant's usage of one UTC day, by model and adapter, with what the prefix cache saved."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

import msgspec
from sqlalchemy import Engine

from billing.usage.buckets import BucketQuery, UsageGroup, UsagePosition, read_page
from control_plane.registry.adapters import service as adapters
from control_plane.usage.organization_schemas import TeamUsageDay, TeamUsageRow, TeamUsageSums
from control_plane.usage.page_cursor import decode_position, encode_position
from core.csv_lines import dollar_text
from core.db import unit_of_work
from core.errors import InvalidRequest, NotFound
from core.periods import YEAR_FIRST, YEAR_LAST, Period
from core.struct_types import view_of


def read_day(
    engine: Engine, *, tenant_id: str, team_id: str | None, day: date, page: str | None = None
) -> TeamUsageDay:
    """The usage of a day. Raises NotFound for another tenant's id, and InvalidRequest."""
    if team_id not in (None, tenant_id):
        raise NotFound("Team not found.", code="team_not_found", param="team_id")
    if not YEAR_FIRST <= day.year <= YEAR_LAST:
        raise InvalidRequest(f"date: use a year from {YEAR_FIRST} to {YEAR_LAST}.", param="date")
    start = datetime.combine(day, time.min, tzinfo=UTC)
    period = Period(start, start + timedelta(days=1))
    query = BucketQuery(tenant_id=tenant_id, period=period, width="1d", group_by=("base_model", "adapter_id"))
    position = UsagePosition(period.start)
    if page is not None:
        position, _ = decode_position(page, period, query, groups=2)
    with unit_of_work(engine) as session:
        whole = msgspec.structs.replace(query, group_by=())
        totals = read_page(session, whole, UsagePosition(period.start), buckets_max=1).groups
        found = read_page(session, query, position, buckets_max=1)
        ids = {group.adapter_id for group in found.groups if group.adapter_id}
        names = adapters.names_of(session, tenant_id=tenant_id, adapter_ids=ids)
    return TeamUsageDay(
        team_id=tenant_id,
        date=day,
        start=period.start,
        end=period.end,
        totals=_sums(totals),
        data=[_row(group, names) for group in found.groups],
        has_more=found.following is not None,
        next_page=None if found.following is None else encode_position(found.following, period.end, query),
    )


def _sums(groups: Sequence[UsageGroup]) -> TeamUsageSums:
    """The sums of no group or one."""
    for group in groups:
        return view_of(group, TeamUsageSums, **_dollars(group))
    return TeamUsageSums(
        requests=0, input_tokens=0, cached_tokens=0, output_tokens=0, kv_page_ms=0, amount_nanos=0,
        amount_usd=dollar_text(0), cached_savings_nanos=0, cached_savings_usd=dollar_text(0),
    )  # fmt: skip


def _row(group: UsageGroup, names: dict[str, str]) -> TeamUsageRow:
    return view_of(group, TeamUsageRow, adapter=names.get(group.adapter_id or ""), **_dollars(group))


def _dollars(group: UsageGroup) -> dict[str, str]:
    return {
        "amount_usd": dollar_text(group.amount_nanos),
        "cached_savings_usd": dollar_text(group.cached_savings_nanos),
    }
