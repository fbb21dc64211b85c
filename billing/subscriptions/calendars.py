"""Reads and changes a tenant's billing calendars."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import cast
from zoneinfo import available_timezones

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from billing.locks import serialize_decision
from billing.subscriptions.calendar import BillingCalendar, CalendarFrom, CalendarHistory, Interval
from billing.subscriptions.models import TenantCalendar
from core.db import among, database_now
from core.errors import InvalidRequest
from core.periods import YEAR_FIRST, YEAR_LAST


def calendars_of(session: Session, tenant_id: str) -> CalendarHistory:
    """The tenant's calendars: in UTC months until it gets another one."""
    return calendars_of_all(session, [tenant_id])[tenant_id]


def calendars_of_all(session: Session, tenant_ids: Collection[str]) -> Mapping[str, CalendarHistory]:
    """The calendars of these tenants. One that never changed its calendar is looked up, but not listed."""
    return _histories(session, select(TenantCalendar).where(among(col(TenantCalendar.tenant_id), tenant_ids)))


def all_calendars(session: Session) -> Mapping[str, CalendarHistory]:
    """The same of all tenants."""
    return _histories(session, select(TenantCalendar))


def next_boundary(session: Session, tenant_id: str) -> datetime:
    """When the tenant's running period ends."""
    return calendars_of(session, tenant_id).period_at(database_now(session)).end


def change_calendar(session: Session, tenant_id: str, calendar: BillingCalendar) -> CalendarFrom:
    """Change the calendar from the end of the running period on, instead of any change that was made in this period.
    Raises InvalidRequest for an unknown zone.
    """
    check(calendar)
    serialize_decision(session, f"calendar of tenant {tenant_id}")
    boundary = next_boundary(session, tenant_id)
    session.add(
        TenantCalendar(
            tenant_id=tenant_id,
            effective_from=boundary,
            created_at=database_now(session),
            interval=calendar.interval,
            zone=calendar.zone,
            anchor=calendar.anchor,
        )
    )
    session.flush()
    return CalendarFrom(boundary, calendar)


def begun_between(session: Session, after: datetime | None, until: datetime) -> set[tuple[str, datetime]]:
    """The tenants of which a later calendar has begun after ``after``, if it is given, and by ``until``; and when."""
    begun = [
        col(TenantCalendar.effective_from) > col(TenantCalendar.created_at),
        col(TenantCalendar.effective_from) <= until,
    ]
    if after is not None:
        begun.append(col(TenantCalendar.effective_from) > after)
    return set(session.exec(select(TenantCalendar.tenant_id, TenantCalendar.effective_from).where(*begun)))


def check(calendar: BillingCalendar) -> None:
    """Raise InvalidRequest, naming the field, for a zone that does not exist or an anchor that is out of range."""
    if calendar.zone not in available_timezones():
        raise InvalidRequest(
            f"zone is {calendar.zone!r}; use a name of the IANA time zone database, such as Europe/Berlin or UTC.",
            code="unknown_zone",
            param="zone",
        )
    if calendar.anchor is not None and not YEAR_FIRST <= calendar.anchor.year <= YEAR_LAST:
        raise InvalidRequest(f"anchor: use a year from {YEAR_FIRST} to {YEAR_LAST}.", param="anchor")


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
