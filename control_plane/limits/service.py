"""What admins set of a tenant's spending, and tenants of their own. ``billing.limits`` does the work; this room checks
that tenants, keys and adapters exist, publishes the tenant, and adds audit rows.
"""

import msgspec
from sqlmodel import Session

from billing.limits import spend_limits, terms
from billing.limits.terms import TermsPatch
from billing.limits.views import SpendingView, SpendLimitView
from control_plane.api_keys import service as api_keys
from control_plane.audit import service as audit
from control_plane.limits.schemas import NewSpendLimit, SpendingPatch
from control_plane.paging import Page
from control_plane.publishing.outbox import publish_change
from control_plane.registry.adapters import service as adapters
from control_plane.tenants import service as tenants
from core.errors import InvalidRequest, NotFound


def read_spending(session: Session, tenant_id: str) -> SpendingView:
    """How a tenant pays, and what it may still spend by that. Raises NotFound."""
    tenants.get(session, tenant_id)
    return terms.read(session, tenant_id)


def change_spending(session: Session, tenant_id: str, patch: SpendingPatch, *, actor: str) -> SpendingView:
    """Change how a tenant pays. Raises NotFound and InvalidRequest."""
    tenants.get(session, tenant_id)
    changed = terms.change(session, tenant_id, TermsPatch(**msgspec.structs.asdict(patch)))
    publish_change(session, "tenants", tenant_id)
    audit.record(
        session,
        actor=actor,
        action="tenant.spending_changed",
        target=tenant_id,
        tenant_id=tenant_id,
        details=msgspec.to_builtins(patch),
    )
    return changed


def set_limit(session: Session, tenant_id: str, new: NewSpendLimit, *, actor: str) -> SpendLimitView:
    """Set one of the tenant's limits. Raises InvalidRequest for a subject that is not the tenant's, and Conflict."""
    _require_subject(session, tenant_id, new)
    limit = spend_limits.set_limit(
        session,
        tenant_id=tenant_id,
        scope=new.scope,
        subject_id=new.subject_id or "",
        window=new.window,
        amount_nanos=new.amount_nanos,
    )
    _limit_changed(session, tenant_id, limit.id, "set", actor=actor, limit=msgspec.to_builtins(new))
    return limit


def list_limits(session: Session, tenant_id: str) -> Page[SpendLimitView]:
    """All limits of the tenant."""
    return Page(data=spend_limits.list_limits(session, tenant_id))


def delete_limit(session: Session, tenant_id: str, limit_id: str, *, actor: str) -> None:
    """Remove one of the tenant's limits. Raises NotFound."""
    spend_limits.delete_limit(session, tenant_id=tenant_id, limit_id=limit_id)
    _limit_changed(session, tenant_id, limit_id, "deleted", actor=actor)


def _require_subject(session: Session, tenant_id: str, new: NewSpendLimit) -> None:
    subject = new.subject_id
    if (subject is None) != (new.scope == "tenant"):
        raise InvalidRequest(
            f"subject_id: a limit of the scope {new.scope!r} "
            + ("has none; leave it out." if subject else "needs the id of what it limits."),
            param="subject_id",
        )
    if subject is not None and not _exists(session, tenant_id, new.scope, subject):
        raise InvalidRequest(f"subject_id: the tenant has no {new.scope} with the id {subject!r}.", param="subject_id")


def _exists(session: Session, tenant_id: str, scope: str, subject_id: str) -> bool:
    if scope == "adapter":
        return bool(adapters.names_of(session, tenant_id=tenant_id, adapter_ids={subject_id}))
    try:
        api_keys.get_key(session, tenant_id=tenant_id, key_id=subject_id)
    except NotFound:
        return False
    return True


def _limit_changed(
    session: Session, tenant_id: str, limit_id: str, verb: str, *, actor: str, **details: object
) -> None:
    publish_change(session, "tenants", tenant_id)
    audit.record(
        session,
        actor=actor,
        action=f"spend_limit.{verb}",
        target=limit_id,
        tenant_id=tenant_id,
        details=dict(details),
    )
