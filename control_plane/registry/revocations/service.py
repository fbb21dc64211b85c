"""Revocations: an adapter may no longer be served, because it was deleted or its tenant is suspended.

A revocation is created in the transaction that removes the adapter's route, so neither exists without the other.
``receipts`` collects the answers of replicas, ``cleanup`` removes the stored files, and ``views`` shows the progress.
"""

from collections.abc import Iterator
from typing import Literal

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from control_plane.audit import service as audit
from control_plane.publishing.outbox import publish_change
from control_plane.registry.adapters import pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.models import Adapter, AdapterRevocation, Alias, Revision
from control_plane.registry.review import decision
from control_plane.tenants.service import Status
from core import clock
from core.contracts.revocations import Revocation
from core.db import database_now

Reason = Literal["deleted", "suspended"]


def delete_adapter(session: Session, *, tenant_id: str, name: str, actor: str) -> AdapterRevocation:
    """Delete an adapter and free its name. Its usage and audit trail stay. Raises NotFound."""
    adapter = adapters.find(session, tenant_id=tenant_id, name=name, lock=True)
    gone = decision.problem(
        "adapter_deleted", "the adapter was deleted in the meantime; create it again and upload the files there"
    )
    decision.reject_open(session, adapter_id=adapter.id, reason=gone, actor=actor)
    adapter.deleted_at = database_now(session)  # storage is charged until then
    session.add(adapter)
    for alias in session.exec(select(Alias).where(Alias.adapter_id == adapter.id)).all():
        session.delete(alias)
    audit.record(
        session, actor=actor, action="adapter.deleted", target=adapter.id, tenant_id=tenant_id, details={"name": name}
    )
    revocation = _revoke(session, adapter, "deleted")
    if adapter.pinned:
        pins.refresh_tenants(session, [tenant_id])  # another pinned adapter may now be within the limit
    return revocation


def apply_tenant_status(session: Session, tenant_id: str, status: Status) -> None:
    """Revoke every adapter of a suspended tenant, or lift these revocations for an active one. Idempotent. Deletions
    stay. The caller has locked the tenant's row.
    """
    suspended = status == "suspended"
    live = select(Adapter).where(Adapter.tenant_id == tenant_id, col(Adapter.deleted_at).is_(None))
    for adapter in session.exec(live.order_by(col(Adapter.id)).with_for_update()).all():
        unlifted = session.exec(pins.unlifted(adapter.id)).first()
        if suspended and unlifted is None:
            _revoke(session, adapter, "suspended")
        elif not suspended and unlifted is not None and unlifted.reason == "suspended":
            unlifted.lifted_at = clock.now()
            session.add(unlifted)
            _publish(session, adapter, unlifted)


def revocation(session: Session, revocation_id: str) -> Revocation | None:
    """The published form of a revocation. None once it is lifted or its publication has ended."""
    row = session.get(AdapterRevocation, revocation_id)
    return _contract(session, row) if row and not row.forgotten_at and not row.lifted_at else None


def all_revocations(session: Session) -> Iterator[tuple[str, Revocation]]:
    """The published form of every revocation that replicas must know."""
    for row in session.exec(open_revocations()).all():
        if contract := _contract(session, row):
            yield row.id, contract


def open_revocations() -> SelectOfScalar[AdapterRevocation]:
    """A select over revocations that are neither lifted nor past their publication."""
    return select(AdapterRevocation).where(
        col(AdapterRevocation.forgotten_at).is_(None), col(AdapterRevocation.lifted_at).is_(None)
    )


def _revoke(session: Session, adapter: Adapter, reason: Reason) -> AdapterRevocation:
    accepted = select(Revision.checked_digest).where(
        Revision.adapter_id == adapter.id, col(Revision.checked_digest).is_not(None)
    )
    names = sorted({f"{adapter.id}@{digest}" for digest in session.exec(accepted)})
    row = AdapterRevocation(tenant_id=adapter.tenant_id, adapter_id=adapter.id, reason=reason, engine_names=names)
    if not names:  # no engine has ever loaded it
        row.unloaded_at = row.created_at
        if reason == "deleted":
            row.removed_at = row.forgotten_at = row.created_at
    session.add(row)
    session.flush()
    _publish(session, adapter, row)
    return row


def _publish(session: Session, adapter: Adapter, row: AdapterRevocation) -> None:
    """Publish the route before the revocation, so that gateways stop before replicas do. The outbox keeps the order."""
    publish_change(session, "adapters", adapters.field_of(adapter))
    pins.refresh(session, adapter)
    session.flush()
    publish_change(session, "revocations", row.id)


def _contract(session: Session, row: AdapterRevocation) -> Revocation | None:
    if not row.engine_names:
        return None
    return Revocation(
        id=row.id,
        adapter_id=row.adapter_id,
        base_model=session.get_one(Adapter, row.adapter_id).base_model,
        engine_names=tuple(row.engine_names),
    )
