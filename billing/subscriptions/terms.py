"""Reads and changes the terms of a tenant's subscription: its billing calendars and when it began."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import cast

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from billing.subscriptions.calendar import BillingCalendar, CalendarFrom, CalendarHistory, Interval
from billing.subscriptions.models import TenantCalendar


def calendar_of(session: Session, tenant_id: str, at: datetime) -> BillingCalendar:
    """The tenant's billing calendar at an instant. Its periods are not cut where the tenant changes its calendar;
    ``calendars_of`` has the periods that are billed.
    """
    return calendars_of(session, tenant_id).at(at)


def calendars_of(session: Session, tenant_id: str) -> CalendarHistory:
    """The tenant's calendars: in UTC months until it gets another one."""
    return _histories(session, select(TenantCalendar).where(TenantCalendar.tenant_id == tenant_id))[tenant_id]


def all_calendars(session: Session) -> Mapping[str, CalendarHistory]:
    """The calendars of all tenants. A tenant that never changed its calendar is looked up, but not listed."""
    return _histories(session, select(TenantCalendar))


def _histories(session: Session, wanted: SelectOfScalar[TenantCalendar]) -> defaultdict[str, CalendarHistory]:
    """Of two calendars from the same instant on, the one that was made last holds."""
    rows = session.exec(wanted.order_by(col(TenantCalendar.effective_from), col(TenantCalendar.created_at)))
    newest: defaultdict[str, dict[datetime, BillingCalendar]] = defaultdict(dict)
    for row in rows:
        newest[row.tenant_id][row.effective_from] = _calendar(row)
    histories: defaultdict[str, CalendarHistory] = defaultdict(CalendarHistory)
    for tenant_id, held in newest.items():
        histories[tenant_id] = CalendarHistory([CalendarFrom(*each) for each in held.items()])
    return histories


def _calendar(row: TenantCalendar) -> BillingCalendar:
    return BillingCalendar(interval=cast("Interval", row.interval), zone=row.zone, anchor=row.anchor)
