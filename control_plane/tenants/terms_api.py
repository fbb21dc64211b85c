"""An admin's routes over the terms of one tenant: plan, billing calendar, discounts, prices of its own, and its end."""

import msgspec
from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.prices import card as price_card
from billing.prices import overrides
from billing.prices.overrides import OverrideView
from billing.subscriptions import assignments, discounts
from billing.subscriptions.calendar import BillingCalendar
from billing.subscriptions.calendars import change_calendar
from billing.subscriptions.discounts import DiscountView, NewDiscount
from billing.subscriptions.ending import end_subscription
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.change_handlers import ChangeHandlers
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page
from control_plane.plans.service import RankClasses
from control_plane.publishing.outbox import publish_change
from control_plane.tenants import own_plan, terms
from control_plane.tenants import service as tenants
from control_plane.tenants.own_plan import OwnPlan
from control_plane.tenants.terms_schemas import (
    CalendarBody,
    CalendarsView,
    NewPlanOfTenant,
    NewPriceOverride,
    PlanOfTenant,
    TenantEnd,
)
from core.db import unit_of_work
from core.errors import NotFound
from core.struct_types import view_of


class OwnPlanOfTenant(Controller):
    """The plan of the calling tenant."""

    path = "/plan"
    tags = ("tenant",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_own_plan(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> OwnPlan:
        """Get the tenant's plan: its limits and prices now, and every change that is set to come."""
        with unit_of_work(engine) as session:
            return own_plan.read(session, principal.own_tenant_id)


class AdminTenantTerms(Controller):
    """The terms of one tenant."""

    path = "/tenants/{tenant_id:str}"
    tags = ("admin: tenants",)

    @get("/plan", sync_to_thread=True)
    def get_tenant_plan(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> PlanOfTenant:
        """Get the tenant's plan, and the change of it that begins later."""
        with unit_of_work(engine) as session:
            return terms.plan_of(session, tenant_id)

    @put("/plan", sync_to_thread=True)
    def change_tenant_plan(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewPlanOfTenant],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        change_handlers: NamedDependency[ChangeHandlers],
    ) -> PlanOfTenant:
        """Change the plan now, with prorated fees, or when the billing period ends."""
        with unit_of_work(engine) as session:
            plan = terms.change_plan(session, principal, tenant_id, data)
            if data.begins == "now":
                change_handlers.on_limits_changed(session, [tenant_id])
            return plan

    @delete("/plan/later", sync_to_thread=True, status_code=200)
    def cancel_plan_change(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> PlanOfTenant:
        """Cancel the change of plan that begins later."""
        with unit_of_work(engine) as session:
            tenants.lock_open(session, tenant_id)
            if assignments.cancel_later_change(session, tenant_id) is None:
                raise NotFound("The tenant has no later change of plan.", code="plan_change_not_found")
            audited(session, principal, "tenant.plan_change_cancelled", tenant_id, tenant_id=tenant_id)
            return terms.plan_of(session, tenant_id)

    @get("/billing-calendar", sync_to_thread=True)
    def get_billing_calendar(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> CalendarsView:
        """Get the billing calendar with the running period, and the calendar that follows."""
        with unit_of_work(engine) as session:
            return terms.calendars(session, tenant_id)

    @put("/billing-calendar", sync_to_thread=True)
    def change_billing_calendar(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[CalendarBody],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> CalendarsView:
        """Change the billing calendar from the end of the running period on."""
        with unit_of_work(engine) as session:
            tenants.lock_open(session, tenant_id)
            change_calendar(session, tenant_id, view_of(data, BillingCalendar))
            audited(session, principal, "tenant.calendar_changed", tenant_id, tenant_id=tenant_id, details=data)
            return terms.calendars(session, tenant_id)

    @post("/discounts", sync_to_thread=True)
    def grant_discount(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewDiscount],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DiscountView]:
        """Grant a discount or a coupon. Discounts apply in the order of granting."""

        def grant(session: Session) -> DiscountView:
            tenants.lock_open(session, tenant_id)
            granted = discounts.grant(session, tenant_id, data)
            details = {"id": granted.id, **msgspec.to_builtins(data)}
            audited(session, principal, "discount.granted", tenant_id, tenant_id=tenant_id, details=details)
            return granted

        return idempotent.run(grant)

    @get("/discounts", sync_to_thread=True)
    def list_discounts(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Page[DiscountView]:
        """List the tenant's discounts in the order in which they apply, ended ones included."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return Page(data=discounts.list_discounts(session, tenant_id))

    @post("/discounts/{discount_id:str}/end", sync_to_thread=True)
    def end_discount(
        self,
        tenant_id: FromPath[str],
        discount_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DiscountView]:
        """End a discount now. The running period has none of it."""

        def end(session: Session) -> DiscountView:
            tenants.require(session, tenant_id)
            ended = discounts.end(session, tenant_id, discount_id)
            audited(session, principal, "discount.ended", tenant_id, tenant_id=tenant_id, details={"id": discount_id})
            return ended

        return idempotent.run(end)

    @post("/price-overrides", sync_to_thread=True)
    def override_prices(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewPriceOverride],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        rank_classes: NamedDependency[RankClasses],
    ) -> Response[OverrideView]:
        """Give the tenant prices of its own in place of its plan's, for a time or until further notice."""

        def add(session: Session) -> OverrideView:
            tenants.lock_open(session, tenant_id)
            price_card.check(data.prices, base_models=rank_classes(session))
            made = overrides.add(
                session,
                tenant_id=tenant_id,
                card=data.prices,
                effective_from=data.effective_from,
                expires_at=data.expires_at,
            )
            publish_change(session, "tenants", tenant_id)
            details = {"id": made.id, "effective_from": made.effective_from.isoformat()}
            audited(session, principal, "tenant.prices_overridden", tenant_id, tenant_id=tenant_id, details=details)
            return made

        return idempotent.run(add)

    @get("/price-overrides", sync_to_thread=True)
    def list_price_overrides(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Page[OverrideView]:
        """List the tenant's price overrides, oldest first. Of those that overlap, the last one holds."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return Page(data=overrides.list_overrides(session, tenant_id))

    @delete("/price-overrides", sync_to_thread=True, status_code=200)
    def end_price_override(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> OverrideView:
        """Let the plan's prices hold again from now on, and cancel overrides that begin later."""
        with unit_of_work(engine) as session:
            tenants.lock_open(session, tenant_id)
            ended = overrides.end(session, tenant_id=tenant_id)
            publish_change(session, "tenants", tenant_id)
            details = {"id": ended.id}
            audited(session, principal, "tenant.price_override_ended", tenant_id, tenant_id=tenant_id, details=details)
            return ended

    @post("/close", sync_to_thread=True)
    def close_tenant(
        self,
        tenant_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        change_handlers: NamedDependency[ChangeHandlers],
    ) -> Response[TenantEnd]:
        """Close the tenant for good. Its requests are refused, and its final invoice follows within a minute."""

        def close(session: Session) -> TenantEnd:
            tenants.close(session, tenant_id)
            ended_at = end_subscription(session, tenant_id)
            details = {"ended_at": ended_at.isoformat()}
            audited(session, principal, "tenant.closed", tenant_id, tenant_id=tenant_id, details=details)
            change_handlers.on_status_set(session, tenant_id, "suspended")
            change_handlers.on_limits_changed(session, [tenant_id])
            return TenantEnd(tenant_id=tenant_id, ended_at=ended_at)

        return idempotent.run(close)
