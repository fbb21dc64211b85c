"""Reads what ``billing.charges.statement`` needs: a tenant's terms, what it used, and what its last invoice left."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.charges.models import StoredPeriodState
from billing.charges.proration import TenantTerms
from billing.charges.resource_charge import ResourceTotal
from billing.charges.state import PeriodState
from billing.charges.statement import PeriodUse
from billing.charges.totals import read_totals
from billing.prices import price_book
from billing.prices.price_book import PriceView
from billing.subscriptions.calendar import CalendarHistory
from billing.subscriptions.discounts import DiscountTerms, read_discounts
from billing.subscriptions.terms import calendars_of
from core.periods import Period

# An hour costs what is in force at its start, and belongs to the period in which it was counted. That may be after the
# tenant has left: its last hours are metered after its final invoice.
_RESOURCES: Final = sa.text("""
SELECT r.kind, r.adapter_id, n.name AS adapter_name, r.base_model, r.rank_class,
    CASE WHEN r.counted_at >= r.hour + interval '1 hour' THEN date_trunc('month', r.hour, 'UTC') END AS late_for,
    width_bucket(r.hour, cast(:borders AS timestamptz[])) AS stretch, sum(r.units)::numeric AS units
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
    totals, versions = read_totals(session, tenant_id, billed, known=contract.versions)
    return PeriodUse(
        totals, versions, list(_read_resources(session, tenant_id, contract.terms, billed, unpriced=unpriced_resources))
    )


def read_state(session: Session, tenant_id: str, start: datetime) -> PeriodState:
    """What the invoices of the time before ``start`` have left."""
    stored = session.exec(
        select(StoredPeriodState.state)
        .where(StoredPeriodState.tenant_id == tenant_id, StoredPeriodState.period_end <= start)
        .order_by(col(StoredPeriodState.period_end).desc())
        .limit(1)
    ).first()
    return PeriodState() if stored is None else msgspec.convert(stored, PeriodState)


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
    for kind, adapter_id, adapter_name, base_model, rank_class, late_for, stretch, units in found:
        version = versions[stretch - 1] if stretch else None
        if version is not None:
            yield ResourceTotal(kind, adapter_id, adapter_name, base_model, rank_class, late_for, version, int(units))
