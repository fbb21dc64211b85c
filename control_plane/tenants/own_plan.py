"""What a tenant sees of its plan: limits and prices of now, and every change that is set to come."""

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from sqlmodel import Session

from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.subscriptions import assignments
from control_plane.plans import service as plans
from control_plane.tenants import limit_overrides, service
from core import fields
from core.contracts.grants import Limits
from core.db import database_now
from core.fields import about


class ComingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan, the limits and the prices that hold from an instant on."""

    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]
    plan: Annotated[str, fields.PLAN]
    limits: Annotated[Limits, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]


class OwnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The calling tenant's plan with the limits and prices that hold for it now."""

    plan: Annotated[str, fields.PLAN]
    limits: Annotated[Limits, fields.LIMITS]
    own_limits: Annotated[Sequence[str], about("Names of the limits that replace the plan's for this tenant.")]
    prices: Annotated[PriceCard, fields.PRICES]
    has_own_prices: Annotated[bool, about("Whether the prices are the tenant's own in place of its plan's.")]
    changes: Annotated[Sequence[ComingPlan], about("Changes that are set to come, the next first.")]


def read(session: Session, tenant_id: str) -> OwnPlan:
    """The tenant's plan. Raises NotFound."""
    tenant, now = service.get(session, tenant_id), database_now(session)
    own_limits = functools.partial(limit_overrides.holding, tenant.limit_overrides, tenant.limit_override_terms)
    book = price_book.load(session, [tenant_id])
    plan_ids = {now: tenant.plan_id}
    if (later := assignments.later_change(session, tenant_id)) is not None:
        plan_ids[later.effective_from] = later.plan_id
    begins = {span.begins for span in book.spans(tenant_id)} | plan_ids.keys()
    begins |= {each.expires_at for each in tenant.limit_override_terms.values() if each.expires_at is not None}
    begins |= {at for plan_id in plan_ids.values() for at in plans.version_instants(session, plan_id)}
    found = list[ComingPlan]()
    for at in sorted({now, *(each for each in begins if each > now)}):
        plan = plans.plan_at(session, plan_ids[max(each for each in plan_ids if each <= at)], at)
        price = book.in_force(tenant_id, at)
        coming = ComingPlan(
            effective_from=at,
            plan=plan.name,
            limits=msgspec.structs.replace(plan.limits, **own_limits(at)),
            prices=plan.prices if price is None else price.card,
        )
        if not found or msgspec.structs.replace(coming, effective_from=found[-1].effective_from) != found[-1]:
            found.append(coming)
    own = book.in_force(tenant_id, now)
    return OwnPlan(
        plan=found[0].plan,
        limits=found[0].limits,
        own_limits=sorted(tenant.limit_overrides),
        prices=found[0].prices,
        has_own_prices=own is not None and own.plan_id == tenant_id,
        changes=found[1:],
    )
