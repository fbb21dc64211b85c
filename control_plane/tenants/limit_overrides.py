"""Single limits of a tenant that replace its plan's, each with a reason and an end where the admin gave them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from sqlmodel import Session, select

from control_plane.tenants.models import HAS_OVERRIDE_TERMS, Tenant
from core import fields
from core.fields import about


class OverrideTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Why a limit replaces the plan's, and until when. Without ``expires_at`` it does until it is changed."""

    reason: Annotated[str | None, about("Why it replaces the plan's; null where no reason was given.")] = None
    expires_at: Annotated[datetime | None, fields.EXPIRES_AT] = None


def holding(overrides: Mapping[str, Any], terms: Mapping[str, OverrideTerms], at: datetime) -> dict[str, Any]:
    """The overrides that hold at an instant, by the limit's name. Pure."""
    expired = {name for name, each in terms.items() if each.expires_at is not None and each.expires_at <= at}
    return {name: limit for name, limit in overrides.items() if name not in expired}


def terms_of(tenant: Tenant) -> dict[str, OverrideTerms]:
    """The terms of each override that has any, by the limit's name. Pure."""
    return msgspec.convert(tenant.limit_override_terms, dict[str, OverrideTerms])


def change(tenant: Tenant, limits: dict[str, Any], given: OverrideTerms, *, now: datetime) -> None:
    """Let these limits replace the plan's under these terms; None restores the plan's. Overrides that have expired are
    removed.
    """
    terms = terms_of(tenant)
    changed = holding(tenant.limit_overrides, terms, now) | limits
    kept = {name: limit for name, limit in changed.items() if limit is not None}
    terms |= dict.fromkeys(limits, given)
    tenant.limit_overrides = kept
    tenant.limit_override_terms = {
        name: msgspec.to_builtins(each) for name, each in terms.items() if name in kept and each != OverrideTerms()
    }


def expired_between(session: Session, after: datetime | None, until: datetime) -> set[tuple[str, datetime]]:
    """The tenants of which an override has expired between these instants, and when."""
    limited = session.exec(select(Tenant).where(HAS_OVERRIDE_TERMS))
    expiries = {(tenant.id, each.expires_at) for tenant in limited for each in terms_of(tenant).values()}
    return {
        (tenant_id, at)
        for tenant_id, at in expiries
        if at is not None and at <= until and (after is None or after < at)
    }
