"""An admin's routes over the terms of one tenant: plan, billing calendar, discounts, prices of its own, and its end."""

from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.prices.overrides import OverrideView
from billing.subscriptions.discounts import DiscountView, NewDiscount
from control_plane.auth.authenticate import Principal
from control_plane.change_handlers import ChangeHandlers
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page
from control_plane.plans.service import RankClasses
from control_plane.tenants import own_plan, terms
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
            plan = terms.change_plan(session, tenant_id, data, actor=principal.key_id)
            if data.begins == "now":
                change_handlers.on_limits_changed(session, [tenant_id])
            return plan

    @delete("/plan/later", sync_to_thread=True, status_code=200)
    def cancel_plan_change(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> PlanOfTenant:
        """Cancel the change of plan that begins later."""
        with unit_of_work(engine) as session:
            return terms.cancel_plan_change(session, tenant_id, actor=principal.key_id)

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
            return terms.change_calendar(session, tenant_id, data, actor=principal.key_id)

    @post("/discounts", sync_to_thread=True)
    def grant_discount(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewDiscount],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DiscountView]:
        """Grant a discount or a coupon. Discounts apply in the order of granting."""
        return idempotent.run(lambda session: terms.grant_discount(session, tenant_id, data, actor=principal.key_id))

    @get("/discounts", sync_to_thread=True)
    def list_discounts(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Page[DiscountView]:
        """List the tenant's discounts in the order in which they apply, ended ones included."""
        with unit_of_work(engine) as session:
            return Page(data=terms.list_discounts(session, tenant_id))

    @post("/discounts/{discount_id:str}/end", sync_to_thread=True)
    def end_discount(
        self,
        tenant_id: FromPath[str],
        discount_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DiscountView]:
        """End a discount now. The running period has none of it."""
        return idempotent.run(
            lambda session: terms.end_discount(session, tenant_id, discount_id, actor=principal.key_id)
        )

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
            base_models = rank_classes(session)
            return terms.override_prices(session, tenant_id, data, base_models=base_models, actor=principal.key_id)

        return idempotent.run(add)

    @get("/price-overrides", sync_to_thread=True)
    def list_price_overrides(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Page[OverrideView]:
        """List the tenant's price overrides, oldest first. Of those that overlap, the last one holds."""
        with unit_of_work(engine) as session:
            return Page(data=terms.list_overrides(session, tenant_id))

    @delete("/price-overrides", sync_to_thread=True, status_code=200)
    def end_price_override(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> OverrideView:
        """Let the plan's prices hold again from now on, and cancel overrides that begin later."""
        with unit_of_work(engine) as session:
            return terms.end_override(session, tenant_id, actor=principal.key_id)

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
            ended = terms.close(session, tenant_id, actor=principal.key_id)
            change_handlers.on_status_set(session, tenant_id, "suspended")
            change_handlers.on_limits_changed(session, [tenant_id])
            return ended

        return idempotent.run(close)
