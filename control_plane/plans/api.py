"""Admin routes of plans and their versions."""

from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.invoicing.what_if import SimulatedTenant
from control_plane.auth.authenticate import Principal
from control_plane.change_handlers import ChangeHandlers
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.plans import drafts, service
from control_plane.plans.schemas import (
    DraftPublication,
    NewPlan,
    NewPlanDraft,
    NewPlanVersion,
    NewSimulation,
    PlanDraftView,
    PlanVersionView,
    PlanView,
    PublishedVersion,
)
from core.db import unit_of_work
from core.errors import InvalidRequest


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
        rank_classes: NamedDependency[service.RankClasses],
    ) -> Response[PlanView]:
        """Create a plan with its first limits and prices."""
        return idempotent.run(
            lambda session: service.create(session, data, base_models=rank_classes(session), actor=principal.key_id)
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
        rank_classes: NamedDependency[service.RankClasses],
    ) -> Response[PublishedVersion]:
        """Add a version with what changes of limits and prices. It applies to every tenant on the plan, at once or from
        its `effective_from` on. `general_prices` names the rank classes without prices of their own.
        """

        def add(session: Session) -> PublishedVersion:
            version = service.add_version(
                session, plan_id, data, base_models=rank_classes(session), actor=principal.key_id
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
        rank_classes: NamedDependency[service.RankClasses],
    ) -> Page[SimulatedTenant]:
        """Show what a past period would have cost the plan's tenants on other prices. Nothing is changed."""
        if (data.prices is None) == (data.draft is None):
            raise InvalidRequest("draft: give either a draft or prices.", param="draft")
        with unit_of_work(reports) as session:
            prices = data.prices or drafts.prices_of(session, plan_id, data.draft or "")
            return service.simulate(session, plan_id, data, prices, base_models=rank_classes(session))

    @post("/{plan_id:str}/drafts", sync_to_thread=True)
    def create_plan_draft(
        self,
        plan_id: FromPath[str],
        data: JSONBody[NewPlanDraft],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        rank_classes: NamedDependency[service.RankClasses],
    ) -> Response[PlanDraftView]:
        """Write limits and prices to publish later. A draft changes nothing until it is published."""
        return idempotent.run(
            lambda session: drafts.create(
                session, plan_id, data, base_models=rank_classes(session), actor=principal.key_id
            )
        )

    @get("/{plan_id:str}/drafts", sync_to_thread=True)
    def list_plan_drafts(
        self,
        plan_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[PlanDraftView]:
        """List a plan's drafts, newest first, published ones included."""
        with unit_of_work(engine) as session:
            return drafts.list_drafts(session, plan_id, cursor=cursor, limit=limit)

    @put("/{plan_id:str}/drafts/{draft_id:str}", sync_to_thread=True)
    def change_plan_draft(
        self,
        plan_id: FromPath[str],
        draft_id: FromPath[str],
        data: JSONBody[NewPlanDraft],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        rank_classes: NamedDependency[service.RankClasses],
    ) -> PlanDraftView:
        """Replace a draft that is not published, on top of the newest version."""
        with unit_of_work(engine) as session:
            return drafts.change(
                session, plan_id, draft_id, data, base_models=rank_classes(session), actor=principal.key_id
            )

    @post("/{plan_id:str}/drafts/{draft_id:str}/publish", sync_to_thread=True)
    def publish_plan_draft(
        self,
        plan_id: FromPath[str],
        draft_id: FromPath[str],
        data: JSONBody[DraftPublication],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        change_handlers: NamedDependency[ChangeHandlers],
        rank_classes: NamedDependency[service.RankClasses],
    ) -> Response[PublishedVersion]:
        """Make a draft the plan's next version. Refused when another version was published since it was written.
        `general_prices` names the rank classes without prices of their own.
        """

        def publish(session: Session) -> PublishedVersion:
            version = drafts.publish(
                session, plan_id, draft_id, data, base_models=rank_classes(session), actor=principal.key_id
            )
            change_handlers.on_plan_changed(session, plan_id)
            return version

        return idempotent.run(publish)

    @delete("/{plan_id:str}/versions/{number:int}", sync_to_thread=True, status_code=200)
    def withdraw_plan_version(
        self,
        plan_id: FromPath[str],
        number: FromPath[int],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> PlanVersionView:
        """Withdraw a version that has not begun. It stays in the list, and never applies."""
        with unit_of_work(engine) as session:
            return service.withdraw_version(session, plan_id, number, actor=principal.key_id)

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
