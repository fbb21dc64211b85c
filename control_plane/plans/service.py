"""Creates plans and their versions, and reads a plan's current limits. Billing's price book stores the prices and rates
usage.
"""

from typing import Any

import msgspec
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from billing.prices import price_book
from control_plane.audit import service as audit
from control_plane.paging import Page, page_of
from control_plane.plans.models import Plan, PlanVersion
from control_plane.plans.schemas import LimitsBody, NewPlan, PlanVersionView, PlanView, PricesBody
from core.contracts.grants import Limits, Prices
from core.errors import Conflict, NotFound


def create(session: Session, new: NewPlan, *, actor: str) -> PlanView:
    """Create a plan with its first version. Raises Conflict where the name is taken."""
    plan = Plan(name=new.name)
    session.add(plan)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"name: a plan {new.name!r} exists. Add a version with POST to its /versions.",
            code="plan_exists",
            param="name",
        ) from error
    version = _add_version(session, plan, new.limits, new.prices, number=1)
    audit.record(session, actor=actor, action="plan.created", target=plan.id, details={"name": plan.name})
    return _view(plan, version)


def add_version(
    session: Session, plan_id: str, limits: LimitsBody, prices: PricesBody, *, actor: str
) -> PlanVersionView:
    """Add the plan's next version; it applies at once. The caller must have the plan's tenants published again, see
    ``change_handlers``. Raises NotFound.
    """
    plan = session.exec(select(Plan).where(Plan.id == plan_id).with_for_update()).first()
    if plan is None:
        raise _no_plan(plan_id)
    number = _newest(session, plan.id).number + 1
    version = _add_version(session, plan, limits, prices, number=number)
    audit.record(session, actor=actor, action="plan.version_added", target=plan.id, details={"number": number})
    return _version_view(version)


def list_plans(session: Session, *, cursor: str | None, limit: int) -> Page[PlanView]:
    """All plans with their current limits and prices, newest first."""
    return page_of(
        session,
        select(Plan),
        col(Plan.id),
        lambda plan: _view(plan, _newest(session, plan.id)),
        cursor=cursor,
        limit=limit,
    )


def get_plan(session: Session, plan_id: str) -> PlanView:
    """One plan with its current limits and prices. Raises NotFound."""
    plan = session.get(Plan, plan_id)
    if plan is None:
        raise _no_plan(plan_id)
    return _view(plan, _newest(session, plan.id))


def list_versions(session: Session, plan_id: str, *, cursor: str | None, limit: int) -> Page[PlanVersionView]:
    """A plan's versions, newest first. Raises NotFound."""
    if session.get(Plan, plan_id) is None:
        raise _no_plan(plan_id)
    versions = select(PlanVersion).where(PlanVersion.plan_id == plan_id)
    return page_of(session, versions, col(PlanVersion.id), _version_view, cursor=cursor, limit=limit)


def find(session: Session, id_or_name: str) -> PlanView | None:
    """The plan with this id or name, or None. Names are unique and never look like ids."""
    wanted = select(Plan).where((col(Plan.id) == id_or_name) | (col(Plan.name) == id_or_name))
    plan = session.exec(wanted).first()
    return _view(plan, _newest(session, plan.id)) if plan else None


def _newest(session: Session, plan_id: str) -> PlanVersion:
    versions = select(PlanVersion).where(PlanVersion.plan_id == plan_id).order_by(col(PlanVersion.number).desc())
    newest = session.exec(versions.limit(1)).first()
    assert newest is not None, "a plan is created with its first version, in one transaction"
    return newest


def _add_version(session: Session, plan: Plan, limits: LimitsBody, prices: PricesBody, *, number: int) -> PlanVersion:
    plain_limits, plain_prices = _plain(limits), _plain(prices)
    price = price_book.add_version(session, plan_id=plan.id, prices=Prices(**plain_prices))
    version = PlanVersion(
        plan_id=plan.id, number=number, limits=plain_limits, prices=plain_prices, price_version_id=price.id
    )
    session.add(version)
    session.flush()
    return version


def _plain(body: LimitsBody | PricesBody) -> dict[str, Any]:
    return msgspec.structs.asdict(body)


def _no_plan(plan_id: str) -> NotFound:
    return NotFound(f"Plan {plan_id!r} not found.", code="plan_not_found")


def _version_view(version: PlanVersion) -> PlanVersionView:
    return PlanVersionView(
        id=version.id,
        number=version.number,
        limits=Limits(**version.limits),
        prices=Prices(**version.prices),
        created_at=version.created_at,
    )


def _view(plan: Plan, version: PlanVersion) -> PlanView:
    return PlanView(
        id=plan.id,
        name=plan.name,
        version=version.number,
        limits=Limits(**version.limits),
        prices=Prices(**version.prices),
        price_version_id=version.price_version_id,
        created_at=plan.created_at,
    )
