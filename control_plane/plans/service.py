"""Creates plans and their versions, and reads a plan's current limits. Billing's price book stores the prices and rates
usage.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from billing.invoicing import what_if
from billing.invoicing.what_if import SimulatedTenant
from billing.prices import card as price_card
from billing.prices import price_book
from billing.prices.card import PriceCard
from control_plane.audit import service as audit
from control_plane.paging import Page, page_from, page_of
from control_plane.plans.models import Plan, PlanVersion
from control_plane.plans.schemas import (
    LimitsBody,
    NewPlan,
    NewPlanVersion,
    NewSimulation,
    PlanVersionView,
    PlanView,
    PublishedVersion,
)
from core.db import database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.periods import EPOCH, aware
from core.struct_types import view_of

_NUMBER_MAX: Final = 2**31 - 1  # of a Postgres integer
_SIMULATED_MAX: Final = 100  # tenants in one answer
_SIMULATED_TIME_MAX: Final = timedelta(days=400)

T = TypeVar("T", LimitsBody, PriceCard)
RankClasses = Callable[[Session], Mapping[str, Sequence[int]]]
"""Reads the rank classes of all base models by id, which belong to a room above this one."""


def create(session: Session, new: NewPlan, *, base_models: Collection[str], actor: str) -> PlanView:
    """Create a plan with its first version. Raises Conflict where the name is taken, and InvalidRequest for a price
    card that contradicts itself or names a model that is none of the ``base_models``.
    """
    price_card.check(new.prices, base_models=base_models)
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
    session: Session, plan_id: str, new: NewPlanVersion, *, base_models: Mapping[str, Sequence[int]], actor: str
) -> PublishedVersion:
    """Add the plan's next version, which applies at once or from its instant on. The caller must have the plan's
    tenants published again, see ``change_handlers``; ``scheduled_versions`` does it at a later instant.

    Raises NotFound, Conflict for an instant that is taken or a ``base_version`` that is not the newest, and
    InvalidRequest as ``create`` does or for an instant in
    the past.
    """
    plan = session.exec(select(Plan).where(Plan.id == plan_id).with_for_update()).first()
    if plan is None:
        raise _no_plan(plan_id)
    newest = newest_number(session, plan_id)
    require_newest(new.base_version, newest)
    at = max(new.effective_from or EPOCH, database_now(session))
    limits, prices = _changed(_version_at(session, plan_id, at), new)
    price_card.check(prices, base_models=base_models)
    number = newest + 1
    version = _add_version(session, plan, limits, prices, number=number, effective_from=new.effective_from)
    details = {"number": number, "effective_from": version.effective_from.isoformat()}
    audit.record(session, actor=actor, action="plan.version_added", target=plan.id, details=details)
    return view_of(version, PublishedVersion, withdrawn_at=None, general_prices=prices.general_prices(base_models))


def _changed(base: PlanVersion, new: NewPlanVersion) -> tuple[LimitsBody, PriceCard]:
    """The limits and prices of a version with the changes. Raises InvalidRequest for no change."""
    if new.limits is msgspec.UNSET and new.prices is msgspec.UNSET:
        raise InvalidRequest("limits: give what changes of limits or prices.", code="missing_field", param="limits")
    return _merged(base.limits, new.limits, LimitsBody, "limits"), _merged(base.prices, new.prices, PriceCard, "prices")


def _merged(before: dict[str, Any], change: Struct | msgspec.UnsetType, whole: type[T], name: str) -> T:
    if isinstance(change, whole):  # of a draft: what it leaves out has its default
        return change
    given = {} if change is msgspec.UNSET else msgspec.to_builtins(change)
    try:
        return msgspec.convert(before | given, whole)
    except msgspec.ValidationError as error:  # null where a number is needed
        problem, _, path = str(error).partition(" - at `$")
        param = name + path.rstrip("`")
        raise InvalidRequest(f"{param}: {problem[0].lower()}{problem[1:]}.", param=param) from error


def withdraw_version(session: Session, plan_id: str, number: int, *, actor: str) -> PlanVersionView:
    """Withdraw a version that has not begun. Raises NotFound, and Conflict for one that has."""
    wanted = select(PlanVersion).where(PlanVersion.plan_id == plan_id, PlanVersion.number == number)
    found = session.exec(wanted).first() if abs(number) <= _NUMBER_MAX else None
    if found is None:
        raise NotFound(f"Plan {plan_id!r} has no version {number}.", code="plan_version_not_found")
    at = price_book.withdraw(session, found.price_version_id)
    details = {"number": number, "effective_from": found.effective_from.isoformat()}
    audit.record(session, actor=actor, action="plan.version_withdrawn", target=plan_id, details=details)
    return _version_view(found, at)


def newest_number(session: Session, plan_id: str) -> int:
    """The number of a plan's newest version. Raises NotFound."""
    newest = session.exec(select(func.max(PlanVersion.number)).where(PlanVersion.plan_id == plan_id)).one()
    if newest is None:
        raise _no_plan(plan_id)
    return newest


def require_newest(base_version: int | None, newest: int) -> None:
    """Raise Conflict when a change was written on top of another version than the newest."""
    if base_version is not None and base_version != newest:
        raise Conflict(
            f"base_version is {base_version}, and the plan's newest version is {newest}. Read that version, and write "
            "the change on top of it.",
            code="base_version_outdated",
            param="base_version",
        )


def simulate(
    session: Session, plan_id: str, wanted: NewSimulation, prices: PriceCard, *, base_models: Collection[str]
) -> Page[SimulatedTenant]:
    """What a period would have cost the plan's tenants on another price card. Writes nothing. Raises NotFound, and
    InvalidRequest for a wrong card or a period without length.
    """
    if session.get(Plan, plan_id) is None:
        raise _no_plan(plan_id)
    price_card.check(prices, base_models=base_models)
    start, end = aware(wanted.start, "start"), aware(wanted.end, "end")
    if end <= start:
        raise InvalidRequest("end: must be later than start.", param="end")
    if end - start > _SIMULATED_TIME_MAX:
        raise InvalidRequest(
            f"start: one simulation covers at most {_SIMULATED_TIME_MAX.days} days; use a later one.", param="start"
        )
    read = partial(what_if.simulate, session, plan_id=plan_id, card=prices, start=start, end=end)
    return page_from(read, cursor=wanted.cursor, limit=_SIMULATED_MAX, key=attrgetter("tenant_id"))


def list_plans(session: Session, *, cursor: str | None, limit: int) -> Page[PlanView]:
    """All plans with their current limits and prices, newest first."""
    return page_of(
        session,
        select(Plan),
        col(Plan.id),
        lambda plan: _view(plan, _in_force(session, plan.id)),
        cursor=cursor,
        limit=limit,
    )


def get_plan(session: Session, plan_id: str) -> PlanView:
    """One plan with its current limits and prices. Raises NotFound."""
    plan = session.get(Plan, plan_id)
    if plan is None:
        raise _no_plan(plan_id)
    return _view(plan, _in_force(session, plan.id))


def names_of(session: Session, plan_ids: Collection[str]) -> dict[str, str]:
    """The names of these plans, by id."""
    wanted = select(Plan.id, Plan.name).where(col(Plan.id).in_(plan_ids))
    return {plan_id: name for plan_id, name in session.exec(wanted)}  # noqa: C416 - dict() does not know row types


def list_versions(session: Session, plan_id: str, *, cursor: str | None, limit: int) -> Page[PlanVersionView]:
    """A plan's versions, newest first. Raises NotFound."""
    if session.get(Plan, plan_id) is None:
        raise _no_plan(plan_id)
    versions = select(PlanVersion).where(PlanVersion.plan_id == plan_id)
    withdrawn = price_book.withdrawn(session, plan_id)
    return page_of(
        session,
        versions,
        col(PlanVersion.id),
        lambda version: _version_view(version, withdrawn.get(version.price_version_id)),
        cursor=cursor,
        limit=limit,
    )


def find(session: Session, id_or_name: str) -> PlanView | None:
    """The plan with this id or name, or None. Names are unique and never look like ids."""
    wanted = select(Plan).where((col(Plan.id) == id_or_name) | (col(Plan.name) == id_or_name))
    plan = session.exec(wanted).first()
    return _view(plan, _in_force(session, plan.id)) if plan else None


def plans_with_scheduled_versions(
    session: Session, *, after: datetime | None, until: datetime
) -> set[tuple[str, datetime]]:
    """The ids of plans of which a version that was scheduled has begun after ``after``, if it is given, and by
    ``until``; and when.
    """
    begun = [
        col(PlanVersion.effective_from) > col(PlanVersion.created_at),
        col(PlanVersion.effective_from) <= until,
    ]
    if after is not None:
        begun.append(col(PlanVersion.effective_from) > after)
    return set(session.exec(select(PlanVersion.plan_id, PlanVersion.effective_from).where(*begun)))


def plan_at(session: Session, plan_id: str, at: datetime) -> PlanView:
    """A plan with the limits and prices that are set for an instant. Raises NotFound."""
    plan = session.get(Plan, plan_id)
    if plan is None:
        raise _no_plan(plan_id)
    return _view(plan, _version_at(session, plan_id, at))


def version_instants(session: Session, plan_id: str) -> list[datetime]:
    """When the versions of a plan begin."""
    return list(session.exec(select(PlanVersion.effective_from).where(PlanVersion.plan_id == plan_id)))


def _in_force(session: Session, plan_id: str) -> PlanVersion:
    return _version_at(session, plan_id, database_now(session))


def _version_at(session: Session, plan_id: str, at: datetime) -> PlanVersion:
    versions = (
        select(PlanVersion)
        .where(
            PlanVersion.plan_id == plan_id,
            PlanVersion.effective_from <= at,
            col(PlanVersion.price_version_id).not_in(list(price_book.withdrawn(session, plan_id))),
        )
        .order_by(col(PlanVersion.effective_from).desc())
    )
    found = session.exec(versions.limit(1)).first()
    assert found is not None, "a plan is created with its first version, which begins at once"
    return found


def _add_version(
    session: Session,
    plan: Plan,
    limits: LimitsBody,
    prices: PriceCard,
    *,
    number: int,
    effective_from: datetime | None = None,
) -> PlanVersion:
    price = price_book.add_version(session, plan_id=plan.id, card=prices, effective_from=effective_from)
    version = PlanVersion(
        plan_id=plan.id,
        number=number,
        limits=msgspec.structs.asdict(limits),
        prices=msgspec.to_builtins(prices),
        effective_from=price.effective_from,
        price_version_id=price.id,
    )
    session.add(version)
    session.flush()
    return version


def _no_plan(plan_id: str) -> NotFound:
    return NotFound(f"Plan {plan_id!r} not found.", code="plan_not_found")


def _version_view(version: PlanVersion, withdrawn_at: datetime | None = None) -> PlanVersionView:
    return view_of(version, PlanVersionView, withdrawn_at=withdrawn_at)


def _view(plan: Plan, version: PlanVersion) -> PlanView:
    return view_of(version, PlanView, id=plan.id, name=plan.name, version=version.number, created_at=plan.created_at)
