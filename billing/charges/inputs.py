"""Reads what ``billing.charges.statement`` needs: a tenant's contract, the sums of what it used, and what its last
invoice left to the next one.

Usage comes from the hourly sums. Only the parts of an hour in which a period begins and ends are read from the records,
so a close costs the number of hours and adapters, and of requests in two hours at most.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.charges.lines import UsageTotal, UsedQuantity
from billing.charges.models import StoredPeriodState, UsageAdjustment
from billing.charges.proration import TenantTerms
from billing.charges.resource_charge import ResourceTotal
from billing.charges.state import PeriodState
from billing.charges.statement import PeriodUse
from billing.prices import price_book
from billing.prices.models import PlanAssignment
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES, each_quantity
from billing.subscriptions.calendar import CalendarHistory
from billing.subscriptions.calendars import calendars_of
from billing.subscriptions.discounts import DiscountTerms, read_discounts
from billing.usage.models import UsageRecord
from billing.usage.sums import NOT_LATE, hour_of
from core.db import total
from core.periods import Period

_HOUR: Final = timedelta(hours=1)

_TOTALS: Final = sa.text(f"""
WITH used AS (
    SELECT base_model, rank_class, adapter_id, price_version_id, service_tier,
        CASE WHEN late_from <> :not_late THEN date_trunc('month', hour, 'UTC') END AS late_for,
        {each_quantity("{count} AS {kind}, {amount}, {requests}")}
    FROM usage_hours
    WHERE tenant_id = :tenant_id
        AND (late_from = :not_late AND hour >= :whole_from AND hour < :whole_until
             OR late_from >= :start AND late_from < :end)
  UNION ALL
    SELECT base_model, coalesce(rank_class, 0), coalesce(adapter_id, ''), price_version_id, service_tier, NULL,
        {each_quantity("sum({count}), sum({amount}), count(DISTINCT request) FILTER (WHERE {count} > 0)")}
    FROM (
        SELECT *, split_part(request_id, ':', 1) AS request FROM usage_now
        WHERE tenant_id = :tenant_id AND late_from IS NULL
            AND (settled_at >= :start AND settled_at < :head_until OR settled_at >= :tail_from AND settled_at < :end)
    ) boundary
    GROUP BY 1, 2, 3, 4, 5
)
SELECT base_model, nullif(rank_class, 0) AS rank_class, nullif(used.adapter_id, '') AS adapter_id,
    adapter_names.name AS adapter_name, price_version_id, service_tier, late_for,
    {each_quantity("sum({kind})::bigint, sum({amount})::bigint, sum({requests})::bigint")}
FROM used LEFT JOIN adapter_names ON adapter_names.adapter_id = used.adapter_id AND adapter_names.tenant_id = :tenant_id
GROUP BY base_model, rank_class, used.adapter_id, adapter_names.name, price_version_id, service_tier, late_for
ORDER BY late_for NULLS FIRST, base_model, used.adapter_id, rank_class, price_version_id, service_tier
""")  # noqa: S608 - constants of this module

# An hour costs what is in force at its start, and belongs to the period in which it was counted. That may be after the
# tenant has left: its last hours are metered after its final invoice.
_RESOURCES: Final = sa.text("""
SELECT r.kind, r.adapter_id, n.name AS adapter_name, r.base_model, r.rank_class,
    CASE WHEN r.counted_at >= r.hour + interval '1 hour' THEN date_trunc('month', r.hour, 'UTC') END AS late_for,
    width_bucket(r.hour, cast(:borders AS timestamptz[])) AS interval_number, sum(r.units)::numeric AS units
FROM resource_hours r
LEFT JOIN adapter_names n ON n.adapter_id = r.adapter_id AND n.tenant_id = r.tenant_id
WHERE r.tenant_id = :tenant_id AND r.counted_at >= :start AND r.counted_at < :end AND r.hour < :ended
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 5, 6, 7
""")

_FOUND: Final = sa.text("""
SELECT ended_at,
    EXISTS (SELECT FROM tenant_calendars c WHERE c.tenant_id = s.tenant_id) AS calendars,
    EXISTS (SELECT FROM discounts d WHERE d.tenant_id = s.tenant_id) AS discounts
FROM subscriptions s WHERE tenant_id = :tenant_id
""")


class Contract(NamedTuple):
    """A tenant's terms, its discounts in the order of granting, and the price versions that it ever had."""

    terms: TenantTerms
    discounts: Sequence[DiscountTerms]
    versions: Mapping[str, PriceView]


class Adjusted(NamedTuple):
    """What was posted for a period besides the amounts of its records: of usage (tiers), and of all else (fees, less
    discounts).
    """

    usage_nanos: int
    other_nanos: int


def read_contract(session: Session, tenant_id: str) -> Contract:
    """The contract of one tenant. Most tenants have neither calendars nor discounts, and no query for them."""
    book = price_book.load(session, [tenant_id])
    found = session.connection().execute(_FOUND, {"tenant_id": tenant_id}).one_or_none()
    calendars = calendars_of(session, tenant_id) if found is not None and found.calendars else CalendarHistory()
    discounts = read_discounts(session, tenant_id) if found is not None and found.discounts else []
    ended = None if found is None else found.ended_at
    terms = TenantTerms(calendars, book.spans(tenant_id), book.joined(tenant_id), ended)
    return Contract(terms, discounts, book.versions_by_id)


def read_used(
    session: Session, tenant_id: str, contract: Contract, billed: Period, *, unpriced_resources: bool = False
) -> PeriodUse:
    """What the tenant used in the billed time, and late usage that waited for it. Resources of tenants that
    never had a price for any are left out, unless ``unpriced_resources`` are wanted.
    """
    return PeriodUse(
        read_totals(session, tenant_id, billed, known=contract.versions),
        list(_read_resources(session, tenant_id, contract.terms, billed, unpriced=unpriced_resources)),
    )


def read_totals(
    session: Session, tenant_id: str, period: Period, *, known: Mapping[str, PriceView] | None = None
) -> list[UsageTotal]:
    """The usage that the period bills: what settled in it in time, and late usage that waited for it. Base models come
    before their adapters, late usage comes last. ``known`` are versions that need not be read.
    """
    whole_from = -((NOT_LATE - period.start) // _HOUR) * _HOUR + NOT_LATE
    whole_until = max(whole_from, hour_of(period.end))
    parameters = {
        "tenant_id": tenant_id,
        "not_late": NOT_LATE,
        "start": period.start,
        "end": period.end,
        "whole_from": whole_from,
        "whole_until": whole_until,
        # A period within one hour has only a head.
        "head_until": min(whole_from, period.end),
        "tail_from": whole_until,
    }
    rows = session.connection().execute(_TOTALS, parameters).all()
    known = known or {}
    unknown = {row.price_version_id for row in rows} - known.keys()
    versions = {**known, **(price_book.versions_by_id(session, unknown) if unknown else {})}
    return [
        UsageTotal(
            base_model=row.base_model,
            rank_class=row.rank_class,
            adapter_id=row.adapter_id,
            adapter_name=row.adapter_name,
            version=versions[row.price_version_id],
            late_for=row.late_for,
            service_tier=row.service_tier,
            used={kind: used for kind, used in zip(QUANTITIES, _used(row), strict=True) if used.counted},
        )
        for row in rows
    ]


def _used(row: sa.Row[Any]) -> Iterator[UsedQuantity]:  # integers, after the columns of owner and price
    counts = row[-3 * len(QUANTITIES) :]
    return (UsedQuantity(*counts[first : first + 3]) for first in range(0, len(counts), 3))


def read_state(session: Session, tenant_id: str, start: datetime) -> PeriodState:
    """What the invoices of the time before ``start`` have left."""
    stored = session.exec(
        select(StoredPeriodState.state)
        .where(StoredPeriodState.tenant_id == tenant_id, StoredPeriodState.period_end <= start)
        .order_by(col(StoredPeriodState.period_end).desc())
        .limit(1)
    ).first()
    return PeriodState() if stored is None else msgspec.convert(stored, PeriodState)


def read_adjusted(session: Session, tenant_id: str, period: Period) -> Adjusted:
    """What was posted for the period besides its records."""
    statement = select(
        total(UsageAdjustment.usage_nanos), total(UsageAdjustment.amount_nanos - UsageAdjustment.usage_nanos)
    ).where(
        UsageAdjustment.tenant_id == tenant_id,
        col(UsageAdjustment.period_start) >= period.start,
        col(UsageAdjustment.period_start) < period.end,
    )
    return Adjusted(*session.exec(statement).one())


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


def split(calendars: CalendarHistory, period: Period) -> Iterator[Period]:
    """The parts of a period that lie in different periods of the calendar, in order."""
    start = period.start
    while start < period.end:
        end = min(calendars.period_at(start).end, period.end)
        yield Period(start, end)
        start = end


def _read_resources(
    session: Session, tenant_id: str, terms: TenantTerms, billed: Period, *, unpriced: bool
) -> Iterator[ResourceTotal]:
    """What was counted in the billed time, of hours that began while the tenant had a subscription."""
    priced = any(span.version is not None and span.version.card.has_resource_prices for span in terms.prices)
    if not (priced or unpriced):
        return
    borders = sorted({span.begins for span in terms.prices} | ({terms.joined} if terms.joined else set()))
    versions = [terms.version_at(border) for border in borders]
    found = session.connection().execute(
        _RESOURCES,
        {
            "tenant_id": tenant_id, "start": billed.start, "end": billed.end, "ended": terms.ended or billed.end,
            "borders": borders,
        },
    )  # fmt: skip
    for kind, adapter_id, adapter_name, base_model, rank_class, late_for, interval, units in found:
        version = versions[interval - 1] if interval else None
        if version is not None:
            yield ResourceTotal(kind, adapter_id, adapter_name, base_model, rank_class, late_for, version, int(units))
