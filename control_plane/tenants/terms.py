"""The plan of a tenant and its billing calendar, now and later. ``billing`` keeps both and charges by them."""

from datetime import datetime

from sqlmodel import Session

from billing.subscriptions import assignments
from billing.subscriptions.calendar import BillingCalendar
from billing.subscriptions.calendars import calendars_of, next_boundary
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.plans import service as plans
from control_plane.tenants import service
from control_plane.tenants.terms_schemas import CalendarsView, CalendarView, LaterPlan, NewPlanOfTenant, PlanOfTenant
from core.db import database_now
from core.struct_types import view_of


def change_plan(session: Session, principal: Principal, tenant_id: str, new: NewPlanOfTenant) -> PlanOfTenant:
    """Change the plan now or at the end of the billing period. Raises NotFound, InvalidRequest for an unknown plan, and
    Conflict for a closed tenant.
    """
    if new.begins == "now":
        service.change_plan(session, tenant_id, new.plan)
    else:
        service.lock_open(session, tenant_id)
        plan = service.plan_named(session, new.plan)
        boundary = next_boundary(session, tenant_id)
        assignments.assign_plan(session, tenant_id=tenant_id, plan_id=plan.id, effective_from=boundary)
    audited(session, principal, "tenant.plan_changed", tenant_id, tenant_id=tenant_id, details=new)
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
    return view_of(calendar, CalendarView, effective_from=since)
