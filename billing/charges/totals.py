"""Adds up the usage that one invoice covers, from the hourly sums. Only the two hours in which a period begins and ends
are read from the records, so a close costs the number of hours and adapters, not of requests.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, select

from billing.charges.lines import UsageTotal
from billing.prices import price_book
from billing.prices.models import PlanAssignment
from billing.prices.price_book import PriceView
from billing.usage.models import UsageRecord
from billing.usage.sums import NOT_LATE, hour_of
from core.periods import Period

_HOUR: Final = timedelta(hours=1)

_TOTALS: Final = sa.text("""
WITH used AS (
    SELECT base_model, rank_class, adapter_id, price_version_id, service_tier,
        CASE WHEN late_from <> :not_late THEN date_trunc('month', hour, 'UTC') END AS late_for,
        input_tokens - cached_tokens AS uncached_input_tokens, cached_tokens, output_tokens, kv_page_ms,
        uncached_requests, cached_requests, output_requests, kv_requests,
        input_nanos, cached_input_nanos, output_nanos, kv_nanos
    FROM usage_hours
    WHERE tenant_id = :tenant_id
        AND (late_from = :not_late AND hour >= :whole_from AND hour < :whole_until
             OR late_from >= :start AND late_from < :end)
  UNION ALL
    SELECT base_model, coalesce(rank_class, 0), coalesce(adapter_id, ''), price_version_id, service_tier, NULL,
        sum(input_tokens - cached_tokens), sum(cached_tokens), sum(output_tokens), sum(kv_page_ms),
        count(DISTINCT request) FILTER (WHERE input_tokens > cached_tokens),
        count(DISTINCT request) FILTER (WHERE cached_tokens > 0),
        count(DISTINCT request) FILTER (WHERE output_tokens > 0),
        count(DISTINCT request) FILTER (WHERE kv_page_ms > 0),
        sum(input_nanos), sum(cached_input_nanos), sum(output_nanos), sum(kv_nanos)
    FROM (
        SELECT *, split_part(request_id, ':', 1) AS request FROM usage_now
        WHERE tenant_id = :tenant_id AND late_from IS NULL
            AND (settled_at >= :start AND settled_at < :head_until OR settled_at >= :tail_from AND settled_at < :end)
    ) boundary
    GROUP BY 1, 2, 3, 4, 5
)
SELECT base_model, nullif(rank_class, 0) AS rank_class, nullif(used.adapter_id, '') AS adapter_id,
    adapter_names.name AS adapter_name, price_version_id, service_tier,
    late_for,
    sum(uncached_input_tokens)::bigint AS uncached_input_tokens, sum(cached_tokens)::bigint AS cached_tokens,
    sum(output_tokens)::bigint AS output_tokens, sum(kv_page_ms)::bigint AS kv_page_ms,
    sum(uncached_requests)::bigint AS uncached_requests, sum(cached_requests)::bigint AS cached_requests,
    sum(output_requests)::bigint AS output_requests, sum(kv_requests)::bigint AS kv_requests,
    sum(input_nanos)::bigint AS input_nanos, sum(cached_input_nanos)::bigint AS cached_input_nanos,
    sum(output_nanos)::bigint AS output_nanos, sum(kv_nanos)::bigint AS kv_nanos
FROM used LEFT JOIN adapter_names ON adapter_names.adapter_id = used.adapter_id AND adapter_names.tenant_id = :tenant_id
GROUP BY base_model, rank_class, used.adapter_id, adapter_names.name, price_version_id, service_tier, late_for
ORDER BY late_for NULLS FIRST, base_model, used.adapter_id, rank_class, price_version_id, service_tier
""")


class PeriodTotals(NamedTuple):
    """The usage of a period, and the price versions that it names, by id."""

    totals: list[UsageTotal]
    versions: dict[str, PriceView]


def read_totals(
    session: Session, tenant_id: str, period: Period, *, known: Mapping[str, PriceView] | None = None
) -> PeriodTotals:
    """The usage that the period bills: what settled in it in time, and late usage that waited for it. Base models come
    before their adapters, late usage comes last. ``known`` are versions that need not be read.
    """
    whole_from = -(-_since_epoch(period.start) // _HOUR) * _HOUR + NOT_LATE
    whole_until = max(whole_from, hour_of(period.end))
    rows = (
        session.connection()
        .execute(
            _TOTALS,
            {
                "tenant_id": tenant_id,
                "not_late": NOT_LATE,
                "start": period.start,
                "end": period.end,
                "whole_from": whole_from,
                "whole_until": whole_until,
                # A period within one hour has only a head.
                "head_until": min(whole_from, period.end),
                "tail_from": max(whole_until, whole_from),
            },
        )
        .mappings()
        .all()
    )
    known = known or {}
    named = {row["price_version_id"] for row in rows}
    unknown = named - known.keys()
    read = price_book.versions_by_id(session, unknown) if unknown else {}
    versions = {each: read.get(each) or known[each] for each in named}
    return PeriodTotals([_total(dict(row), versions[row["price_version_id"]]) for row in rows], versions)


def period_start(session: Session, tenant_id: str, billed_until: datetime | None) -> datetime | None:
    """When the tenant's open period began: at ``billed_until``, or with its first plan, or with usage before that. None
    without any.
    """
    if billed_until is not None:
        return billed_until
    joined = session.exec(
        select(sa.func.min(PlanAssignment.created_at)).where(PlanAssignment.tenant_id == tenant_id)
    ).one()
    used = session.exec(select(sa.func.min(UsageRecord.settled_at)).where(UsageRecord.tenant_id == tenant_id)).one()
    return min((instant for instant in (joined, used) if instant is not None), default=None)


def _since_epoch(instant: datetime) -> timedelta:
    return instant - NOT_LATE


def _total(row: dict[str, Any], version: PriceView) -> UsageTotal:  # any column
    listed = version.card.listed(row["base_model"], row["rank_class"])
    return UsageTotal(**row, prices=listed, factor_permille=version.card.factor_permille(row["service_tier"]))
