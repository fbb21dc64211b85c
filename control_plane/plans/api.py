"""Admin routes of plans and their versions."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.views import SimulatedTenant
from control_plane.auth.authenticate import Principal
from control_plane.change_handlers import ChangeHandlers
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.plans import service
from control_plane.plans.schemas import NewPlan, NewPlanVersion, NewSimulation, PlanVersionView, PlanView
from core.db import unit_of_work


class AdminPlans(Controller):
    """The plans that tenants can be assigned to."""

    path = "/plans"
    tags = ("admin: plans",)

    @post(sync_to_thread=True)
    def create_plan(
        self,
        data: JSONBody[NewPlan],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        base_model_ids: NamedDependency[service.BaseModelIds],
    ) -> Response[PlanView]:
        """Create a plan with its first limits and prices."""
        return idempotent.run(
            lambda session: service.create(session, data, base_models=base_model_ids(session), actor=principal.key_id)
        )

    @get(sync_to_thread=True)
    def list_plans(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[PlanView]:
        """List all plans with their current limits and prices, newest first."""
        with unit_of_work(engine) as session:
            return service.list_plans(session, cursor=cursor, limit=limit)

    @post("/{plan_id:str}/versions", sync_to_thread=True)
    def add_plan_version(
        self,
        plan_id: FromPath[str],
        data: JSONBody[NewPlanVersion],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        change_handlers: NamedDependency[ChangeHandlers],
        base_model_ids: NamedDependency[service.BaseModelIds],
    ) -> Response[PlanVersionView]:
        """Add a version with new limits and prices. It applies to every tenant on the plan, at once or from its
        `effective_from` on.
        """

        def add(session: Session) -> PlanVersionView:
            version = service.add_version(
                session, plan_id, data, base_models=base_model_ids(session), actor=principal.key_id
            )
            change_handlers.on_plan_changed(session, plan_id)
            return version

        return idempotent.run(add)

    @post("/{plan_id:str}/simulations", sync_to_thread=True, status_code=200)
    def simulate_prices(
        self,
        plan_id: FromPath[str],
        data: JSONBody[NewSimulation],
        reports: NamedDependency[Engine],
        base_model_ids: NamedDependency[service.BaseModelIds],
    ) -> Page[SimulatedTenant]:
        """Show what a past period would have cost the plan's tenants on other prices. Nothing is changed."""
        with unit_of_work(reports) as session:
            return service.simulate(session, plan_id, data, base_models=base_model_ids(session))

    @get("/{plan_id:str}/versions", sync_to_thread=True)
    def list_plan_versions(
        self,
        plan_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[PlanVersionView]:
        """List a plan's versions, newest first."""
        with unit_of_work(engine) as session:
            return service.list_versions(session, plan_id, cursor=cursor, limit=limit)
