"""Wire types of a tenant's terms: its plan over time, billing calendar, discounts and prices of its own."""

from datetime import date, datetime
from typing import Annotated, Literal

import msgspec

from billing.prices.card import PriceCard
from billing.subscriptions.calendar import Interval
from control_plane.tenants.schemas import PlanIdOrName
from core import fields
from core.fields import about

Zone = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+(?!\n)$")]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class NewPlanOfTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan to change to: now, or when the running billing period ends. It replaces a change that was to come."""

    plan: Annotated[PlanIdOrName, fields.PLAN]
    begins: Annotated[
        Literal["now", "period_end"], about("now, or period_end for the end of the running billing period.")
    ] = "now"


class LaterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change of plan that begins later."""

    plan: Annotated[str, fields.PLAN]
    plan_id: Annotated[str, fields.PLAN_ID]
    effective_from: Annotated[datetime, about("When the plan changes.")]


class PlanOfTenant(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a tenant, and the change that begins later, if there is one."""

    plan: Annotated[str, fields.PLAN]
    plan_id: Annotated[str, fields.PLAN_ID]
    later: Annotated[LaterPlan | None, about("The change of plan that begins later; null for none.")]


class CalendarBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When billing periods begin: at local midnights in an IANA time zone. With ``anchor``, on the anniversaries of
    that day; without one, on Mondays, or on the first day of a month, quarter or year.
    """

    interval: Annotated[Interval, fields.INTERVAL] = "month"
    zone: Annotated[Zone, fields.ZONE] = "UTC"
    anchor: Annotated[date | None, fields.ANCHOR] = None


class CalendarView(msgspec.Struct, frozen=True, kw_only=True):
    """A billing calendar, and the instant from which it holds; null: from the tenant's beginning."""

    interval: Annotated[Interval, fields.INTERVAL]
    zone: Annotated[str, fields.ZONE]
    anchor: Annotated[date | None, fields.ANCHOR]
    effective_from: Annotated[datetime | None, about("From when on it holds; null for the beginning.")]


class CalendarsView(msgspec.Struct, frozen=True, kw_only=True):
    """The calendar of now with the running period, and the one that begins when the period ends, if it changes."""

    current: Annotated[CalendarView, about("The calendar of now.")]
    period_start: Annotated[datetime, fields.START]
    period_end: Annotated[datetime, fields.END]
    later: Annotated[CalendarView | None, about("What begins later; null for no change.")]


class NewPriceOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a tenant's own in place of its plan's, from ``effective_from``, or now, until ``expires_at``."""

    prices: Annotated[PriceCard, fields.PRICES]
    effective_from: Annotated[Instant | None, fields.EFFECTIVE_FROM] = None
    expires_at: Annotated[Instant | None, fields.EXPIRES_AT] = None


class TenantEnd(msgspec.Struct, frozen=True, kw_only=True):
    """When a tenant was closed. The worker makes its final invoice within a minute."""

    tenant_id: Annotated[str, fields.TENANT_ID]
    ended_at: Annotated[datetime, fields.ENDED_AT]
