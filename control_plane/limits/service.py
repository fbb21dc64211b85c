"""What admins set of a tenant's spending. ``billing.limits`` does the work; this room checks that the tenant exists,
publishes it, and adds audit rows.
"""

import msgspec
from sqlmodel import Session

from billing.limits import terms
from billing.limits.terms import TermsPatch
from billing.limits.views import SpendingView
from control_plane.audit import service as audit
from control_plane.limits.schemas import SpendingPatch
from control_plane.publishing.outbox import publish_change
from control_plane.tenants import service as tenants


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
