"""Wire types of a tenant's terms: its plan over time, billing calendar, discounts and prices of its own."""

from datetime import date, datetime
from typing import Annotated, Literal

import msgspec

from billing.prices.card import PriceCard
from billing.subscriptions.calendar import Interval
from control_plane.tenants.schemas import PlanIdOrName

Zone = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+(?!\n)$")]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class NewPlanOfTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan to change to: now, or when the running billing period ends. It replaces a change that was to come."""

    plan: PlanIdOrName
    begins: Literal["now", "period_end"] = "now"


class LaterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change of plan that begins later."""

    plan: str
    plan_id: str
    effective_from: datetime


class PlanOfTenant(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a tenant, and the change that begins later, if there is one."""

    plan: str
    plan_id: str
    later: LaterPlan | None


class CalendarBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When billing periods begin: at local midnights in an IANA time zone. With ``anchor``, on the anniversaries of
    that day; without one, on Mondays, or on the first day of a month, quarter or year.
    """

    interval: Interval = "month"
    zone: Zone = "UTC"
    anchor: date | None = None


class CalendarView(msgspec.Struct, frozen=True, kw_only=True):
    """A billing calendar, and the instant from which it holds; null: from the tenant's beginning."""

    interval: Interval
    zone: str
    anchor: date | None
    effective_from: datetime | None


class CalendarsView(msgspec.Struct, frozen=True, kw_only=True):
    """The calendar of now with the running period, and the one that begins when the period ends, if it changes."""

    current: CalendarView
    period_start: datetime
    period_end: datetime
    later: CalendarView | None


class NewPriceOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a tenant's own in place of its plan's, from ``effective_from``, or now, until ``expires_at``."""

    prices: PriceCard
    effective_from: Instant | None = None
    expires_at: Instant | None = None


class TenantEnd(msgspec.Struct, frozen=True, kw_only=True):
    """When a tenant was closed. The worker makes its final invoice within a minute."""

    tenant_id: str
    ended_at: datetime
