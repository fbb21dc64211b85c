"""Changes the terms of a tenant: its plan now or later, its billing calendar, discounts, prices of its own and its end.
``billing`` keeps them and charges by them; this room publishes what gateways hold by, and audits.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from sqlmodel import Session

from billing.prices import card as price_card
from billing.prices import overrides
from billing.prices.overrides import OverrideView
from billing.subscriptions import assignments, discounts, ending, terms
from billing.subscriptions.calendar import BillingCalendar
from billing.subscriptions.discounts import DiscountView, NewDiscount
from billing.subscriptions.terms import calendars_of
from control_plane.audit import service as audit
from control_plane.plans import service as plans
from control_plane.publishing.outbox import publish_change
from control_plane.tenants import service
from control_plane.tenants.terms_schemas import (
    CalendarBody,
    CalendarsView,
    CalendarView,
    LaterPlan,
    NewPlanOfTenant,
    NewPriceOverride,
    PlanOfTenant,
    TenantEnd,
)
from core.db import database_now
from core.errors import NotFound


def change_plan(session: Session, tenant_id: str, new: NewPlanOfTenant, *, actor: str) -> PlanOfTenant:
    """Change the plan now or at the end of the billing period. Raises NotFound, InvalidRequest for an unknown plan, and
    Conflict for a closed tenant.
    """
    if new.begins == "now":
        service.change_plan(session, tenant_id, new.plan)
    else:
        service.lock_open(session, tenant_id)
        plan = service.plan_named(session, new.plan)
        boundary = terms.next_boundary(session, tenant_id)
        assignments.assign_plan(session, tenant_id=tenant_id, plan_id=plan.id, effective_from=boundary)
    _audit(session, actor, "tenant.plan_changed", tenant_id, {"plan": new.plan, "begins": new.begins})
    return plan_of(session, tenant_id)


def cancel_plan_change(session: Session, tenant_id: str, *, actor: str) -> PlanOfTenant:
    """Cancel the change of plan that begins later. Raises NotFound when there is none."""
    service.lock_open(session, tenant_id)
    if assignments.cancel_later_change(session, tenant_id) is None:
        raise NotFound("The tenant has no later change of plan.", code="plan_change_not_found")
    _audit(session, actor, "tenant.plan_change_cancelled", tenant_id, {})
    return plan_of(session, tenant_id)


def plan_of(session: Session, tenant_id: str) -> PlanOfTenant:
    """The tenant's plan and its later change. Raises NotFound."""
    tenant = service.get(session, tenant_id)
    later = assignments.later_change(session, tenant_id)
    return PlanOfTenant(
        plan=tenant.plan,
        plan_id=tenant.plan_id,
        later=None
        if later is None
        else LaterPlan(
            plan=plans.get_plan(session, later.plan_id).name,
            plan_id=later.plan_id,
            effective_from=later.effective_from,
        ),
    )


def change_calendar(session: Session, tenant_id: str, body: CalendarBody, *, actor: str) -> CalendarsView:
    """Change the billing calendar from the end of the running period on. Raises NotFound, and InvalidRequest for an
    unknown zone.
    """
    service.lock_open(session, tenant_id)
    calendar = BillingCalendar(interval=body.interval, zone=body.zone, anchor=body.anchor)
    terms.change_calendar(session, tenant_id, calendar)
    _audit(session, actor, "tenant.calendar_changed", tenant_id, msgspec.to_builtins(body))
    return calendars(session, tenant_id)


def calendars(session: Session, tenant_id: str) -> CalendarsView:
    """The tenant's calendar of now and the later one. Raises NotFound."""
    service.get(session, tenant_id)
    history = calendars_of(session, tenant_id)
    now = database_now(session)
    period = history.period_at(now)
    change = history.change_after(now)
    return CalendarsView(
        current=_calendar_view(history.at(now), history.since(now)),
        period_start=period.start,
        period_end=period.end,
        later=None if change is None else _calendar_view(change.calendar, change.since),
    )


def _calendar_view(calendar: BillingCalendar, since: datetime | None) -> CalendarView:
    return CalendarView(interval=calendar.interval, zone=calendar.zone, anchor=calendar.anchor, effective_from=since)


def grant_discount(session: Session, tenant_id: str, new: NewDiscount, *, actor: str) -> DiscountView:
    """Grant a discount or coupon. Raises NotFound, and InvalidRequest where it contradicts itself."""
    service.lock_open(session, tenant_id)
    granted = discounts.grant(session, tenant_id, new)
    _audit(session, actor, "discount.granted", tenant_id, {"id": granted.id, **msgspec.to_builtins(new)})
    return granted


def end_discount(session: Session, tenant_id: str, discount_id: str, *, actor: str) -> DiscountView:
    """End a discount now. Raises NotFound, and Conflict when it has ended."""
    service.get(session, tenant_id)
    ended = discounts.end(session, tenant_id, discount_id)
    _audit(session, actor, "discount.ended", tenant_id, {"id": discount_id})
    return ended


def list_discounts(session: Session, tenant_id: str) -> list[DiscountView]:
    """The tenant's discounts, in the order in which they apply. Raises NotFound."""
    service.get(session, tenant_id)
    return discounts.list_discounts(session, tenant_id)


def override_prices(
    session: Session, tenant_id: str, new: NewPriceOverride, *, base_models: Collection[str], actor: str
) -> OverrideView:
    """Give the tenant prices of its own for a time. Raises NotFound, and InvalidRequest for a wrong card or time."""
    service.lock_open(session, tenant_id)
    price_card.check(new.prices, base_models=base_models)
    made = overrides.add(
        session,
        tenant_id=tenant_id,
        card=new.prices,
        effective_from=new.effective_from,
        expires_at=new.expires_at,
    )
    publish_change(session, "tenants", tenant_id)
    details = {"id": made.id, "effective_from": made.effective_from.isoformat()}
    _audit(session, actor, "tenant.prices_overridden", tenant_id, details)
    return made


def end_override(session: Session, tenant_id: str, *, actor: str) -> OverrideView:
    """Let the plan's prices hold again from now on. Raises NotFound when the tenant has none of its own."""
    service.lock_open(session, tenant_id)
    ended = overrides.end(session, tenant_id=tenant_id)
    publish_change(session, "tenants", tenant_id)
    _audit(session, actor, "tenant.price_override_ended", tenant_id, {"id": ended.id})
    return ended


def list_overrides(session: Session, tenant_id: str) -> list[OverrideView]:
    """The tenant's price overrides, oldest first. Raises NotFound."""
    service.get(session, tenant_id)
    return overrides.list_overrides(session, tenant_id)


def close(session: Session, tenant_id: str, *, actor: str) -> TenantEnd:
    """Close the tenant for good: its requests are refused, and it owes no further fees. Closing again changes nothing.
    Raises NotFound.
    """
    service.close(session, tenant_id)
    ended_at = ending.end_subscription(session, tenant_id)
    _audit(session, actor, "tenant.closed", tenant_id, {"ended_at": ended_at.isoformat()})
    return TenantEnd(tenant_id=tenant_id, ended_at=ended_at)


def _audit(session: Session, actor: str, action: str, tenant_id: str, details: dict[str, Any]) -> None:
    audit.record(session, actor=actor, action=action, target=tenant_id, tenant_id=tenant_id, details=details)
