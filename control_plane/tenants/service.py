"""Creates and changes tenants, and computes their effective limits. Every change is published and audited."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from sqlmodel import Session, col, select

from billing.limits import spending
from billing.limits.spending import PublishedSpending
from billing.prices import overrides
from billing.prices.price_book import PriceView
from billing.subscriptions import assignments
from billing.usage.months import charged_before_month
from control_plane.audit import service as audit
from control_plane.plans import service as plans
from control_plane.plans.schemas import PlanView
from control_plane.publishing.outbox import publish_bulk, publish_change
from control_plane.tenants import limit_overrides
from control_plane.tenants.limit_overrides import OverrideTerms
from control_plane.tenants.models import Tenant
from control_plane.tenants.schemas import NewTenant, TenantPatch, TenantView
from core.contracts.grants import Limits, TenantGrant
from core.db import among, database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.periods import aware
from core.struct_types import view_of

Status = Literal["active", "suspended"]
_READ_AT_ONCE: Final = 1000


def create(session: Session, new: NewTenant, *, actor: str) -> TenantView:
    """Create an active tenant on an existing plan. Raises InvalidRequest for an unknown plan."""
    plan = plan_named(session, new.plan)
    tenant = Tenant(name=new.name, plan_id=plan.id)
    session.add(tenant)
    session.flush()
    assignments.assign_plan(session, tenant_id=tenant.id, plan_id=plan.id)
    publish_change(session, "tenants", tenant.id)
    audit.record(
        session,
        actor=actor,
        action="tenant.created",
        target=tenant.id,
        tenant_id=tenant.id,
        details={"name": new.name, "plan": plan.id},
    )
    return _view(tenant, plan, database_now(session))


def change(session: Session, tenant_id: str, patch: TenantPatch, *, actor: str) -> TenantView:
    """Apply the fields of the patch. A new plan's prices apply from now on. Raises NotFound for the tenant and
    InvalidRequest for an unknown plan and for terms of limits that do not fit.
    """
    tenant = _find(session, tenant_id, lock=True)
    if patch.name is not msgspec.UNSET:
        tenant.name = patch.name
    if patch.status is not msgspec.UNSET:
        _require_open(tenant)
        tenant.status = patch.status
    if patch.limits is not msgspec.UNSET:
        now = database_now(session)
        terms = OverrideTerms(reason=patch.limits_reason or None, expires_at=_expiry(patch, now))
        limit_overrides.change(tenant, msgspec.to_builtins(patch.limits), terms, now=now)
    elif patch.limits_reason or patch.limits_expire_at:
        raise InvalidRequest(
            "limits: missing. limits_reason and limits_expire_at are about the limits in the same request.",
            param="limits",
        )
    if patch.plan is not msgspec.UNSET:
        _require_open(tenant)
        plan = plan_named(session, patch.plan)
        tenant.plan_id = plan.id
        assignments.assign_plan(session, tenant_id=tenant.id, plan_id=plan.id)
    session.add(tenant)
    publish_change(session, "tenants", tenant.id)
    audit.record(
        session,
        actor=actor,
        action="tenant.changed",
        target=tenant.id,
        tenant_id=tenant.id,
        details=msgspec.to_builtins(patch),
    )
    return _view(tenant, plans.get_plan(session, tenant.plan_id), database_now(session))


def change_plan(session: Session, tenant_id: str, id_or_name: str) -> None:
    """Change the plan now. Raises NotFound, Conflict for a closed tenant and InvalidRequest for an unknown plan."""
    tenant = _find(session, tenant_id, lock=True)
    _require_open(tenant)
    tenant.plan_id = plan_named(session, id_or_name).id
    session.add(tenant)
    assignments.assign_plan(session, tenant_id=tenant.id, plan_id=tenant.plan_id)
    publish_change(session, "tenants", tenant.id)


def begin_assigned_plan(session: Session, tenant_id: str) -> None:
    """Let the tenant have the plan that billing prices it by now, after a change that was made for later has begun."""
    tenant = _find(session, tenant_id, lock=True)
    plan_id = assignments.plan_at(session, tenant_id, database_now(session))
    if plan_id is not None and plan_id != tenant.plan_id:
        tenant.plan_id = plan_id
        session.add(tenant)
    publish_bulk(session, "tenants", [tenant.id])


def close(session: Session, tenant_id: str) -> None:
    """Close a tenant for good: gateways refuse its requests. Raises NotFound."""
    tenant = _find(session, tenant_id, lock=True)
    tenant.status = "closed"
    session.add(tenant)
    publish_change(session, "tenants", tenant.id)


def get(session: Session, tenant_id: str) -> TenantView:
    """One tenant. Raises NotFound."""
    tenant = _find(session, tenant_id)
    return _view(tenant, plans.get_plan(session, tenant.plan_id), database_now(session))


def get_own(session: Session, tenant_id: str) -> TenantView:
    """One tenant as it may see itself: without what an admin noted. Raises NotFound."""
    found = get(session, tenant_id)
    terms = {name: OverrideTerms(expires_at=each.expires_at) for name, each in found.limit_override_terms.items()}
    return msgspec.structs.replace(found, limit_override_terms=terms)


def require(session: Session, tenant_id: str) -> None:
    """Raise NotFound for a tenant that does not exist."""
    _find(session, tenant_id)


def viewer(session: Session) -> Callable[[Tenant], TenantView]:
    """A view of many tenants, which reads each plan once."""
    plan_of, now = _plans_of(session), database_now(session)
    return lambda tenant: _view(tenant, plan_of(tenant.plan_id), now)


def names_of(session: Session, tenant_ids: Collection[str]) -> dict[str, str]:
    """The names of these tenants, by id."""
    wanted = select(Tenant.id, Tenant.name).where(col(Tenant.id).in_(tenant_ids))
    return {tenant_id: name for tenant_id, name in session.exec(wanted)}  # noqa: C416 - dict() does not know row types


def lock(session: Session, tenant_id: str) -> TenantView:
    """Like ``get``, and locks the tenant's row, so that decisions that count against a limit run one at a time."""
    tenant = _find(session, tenant_id, lock=True)
    return _view(tenant, plans.get_plan(session, tenant.plan_id), database_now(session))


def lock_open(session: Session, tenant_id: str) -> None:
    """Lock a tenant that is not closed. Raises NotFound, and Conflict for a closed one."""
    _require_open(_find(session, tenant_id, lock=True))


def status(session: Session, tenant_id: str) -> Status:
    """The tenant's status, as gateways know it. Raises NotFound."""
    return _served(_find(session, tenant_id))


def publish_tenants_of_plan(session: Session, plan_id: str) -> list[str]:
    """Publish every tenant on this plan again, after the plan got a new version. Returns their ids."""
    tenant_ids = list(session.exec(select(Tenant.id).where(Tenant.plan_id == plan_id)))
    publish_bulk(session, "tenants", tenant_ids)
    return tenant_ids


def grants(session: Session, tenant_ids: Collection[str]) -> dict[str, TenantGrant]:
    """The published form of these tenants, for gateways, by id. Unknown ids are left out."""
    return _grants(session, session.exec(select(Tenant).where(among(col(Tenant.id), tenant_ids))).all())


def all_grants(session: Session) -> Iterator[tuple[str, TenantGrant]]:
    """The published form of every tenant, including suspended ones, by id."""
    for some in session.exec(select(Tenant).execution_options(yield_per=_READ_AT_ONCE)).partitions():
        yield from _grants(session, some).items()


def spend_limited_grants(session: Session) -> dict[str, TenantGrant]:
    """The published form of the tenants whose spending has a limit by their plan or of their own, by id."""
    plan_of, now = _plans_of(session), database_now(session)
    limited = [
        tenant
        for tenant in session.exec(select(Tenant))
        if _limits(tenant, plan_of(tenant.plan_id), now).spend_nanos_per_month is not None
    ]
    return _grants(session, limited)


def _grants(session: Session, tenants: Sequence[Tenant]) -> dict[str, TenantGrant]:
    """The published form of many tenants, with a few queries for all of them."""
    plan_of, now = _plans_of(session), database_now(session)
    limits = {tenant.id: _limits(tenant, plan_of(tenant.plan_id), now) for tenant in tenants}
    limited = [tenant_id for tenant_id, each in limits.items() if each.spend_nanos_per_month is not None]
    charged = charged_before_month(session, limited) if limited else {}
    own, spend = overrides.in_force(session, limits), spending.read(session, limits)
    return {
        tenant.id: _grant(
            tenant,
            plan_of(tenant.plan_id),
            limits[tenant.id],
            own.get(tenant.id),
            charged.get(tenant.id, 0),
            spend(tenant.id),
        )
        for tenant in tenants
    }


def _plans_of(session: Session) -> Callable[[str], PlanView]:
    """A reader that caches each plan."""
    return functools.cache(lambda plan_id: plans.get_plan(session, plan_id))


def _find(session: Session, tenant_id: str, *, lock: bool = False) -> Tenant:
    wanted = select(Tenant).where(Tenant.id == tenant_id)
    tenant = session.exec(wanted.with_for_update(key_share=True) if lock else wanted).first()
    if tenant is None:
        raise NotFound("Tenant not found.", code="tenant_not_found")
    return tenant


def _require_open(tenant: Tenant) -> None:
    if tenant.status == "closed":
        raise Conflict(f"Tenant {tenant.id} is closed for good. Create another one.", code="tenant_closed")


def _served(tenant: Tenant) -> Status:
    return "active" if tenant.status == "active" else "suspended"


def plan_named(session: Session, id_or_name: str) -> PlanView:
    """The plan with this id or name. Raises InvalidRequest."""
    plan = plans.find(session, id_or_name)
    if plan is None:
        raise InvalidRequest(
            f"plan: {id_or_name!r} not found. GET /api/v1/admin/plans lists the plans.",
            code="plan_not_found",
            param="plan",
        )
    return plan


def _expiry(patch: TenantPatch, now: datetime) -> datetime | None:
    if not patch.limits_expire_at:
        return None
    expires_at = aware(patch.limits_expire_at, "limits_expire_at")
    if expires_at <= now:
        raise InvalidRequest(f"limits_expire_at: must be later than now, {now.isoformat()}.", param="limits_expire_at")
    return expires_at


def _limits(tenant: Tenant, plan: PlanView, now: datetime) -> Limits:
    own = limit_overrides.holding(tenant.limit_overrides, limit_overrides.terms_of(tenant), now)
    return msgspec.structs.replace(plan.limits, **own)


def _grant(
    tenant: Tenant,
    plan: PlanView,
    limits: Limits,
    own: PriceView | None,
    charged_nanos: int,
    spend: PublishedSpending,
) -> TenantGrant:
    """``own`` are the tenant's own prices in place of the plan's. ``charged_nanos`` is the amount charged before this
    month; it is used only where spending has a limit. ``spend`` is what credit and the tenant's limits allow.
    """
    per_month = limits.spend_nanos_per_month
    granted = (plan.prices if own is None else own.card).grant_prices()
    return TenantGrant(
        tenant_id=tenant.id,
        status=_served(tenant),
        limits=limits,
        prices=granted.prices,
        flex_prices=granted.flex_prices,
        model_prices=granted.model_prices,
        price_version_id=plan.price_version_id if own is None else own.id,
        spend_ceiling_nanos=spend.ceiling_with(None if per_month is None else charged_nanos + per_month),
        charged_nanos=charged_nanos,
        spend_limits=spend.limits,
        zone=spend.zone,
    )


def _view(tenant: Tenant, plan: PlanView, now: datetime) -> TenantView:
    terms = limit_overrides.terms_of(tenant)
    own = limit_overrides.holding(tenant.limit_overrides, terms, now)
    return view_of(
        tenant,
        TenantView,
        plan=plan.name,
        limits=msgspec.structs.replace(plan.limits, **own),
        limit_overrides=own,
        limit_override_terms={name: each for name, each in terms.items() if name in own},
    )
