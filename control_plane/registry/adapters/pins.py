"""Pinned adapters, which replicas keep in host memory because the tenant's plan includes it, and their published form.

The pinned revisions are those that the adapter's name serves: the revisions of its alias ``prod``, or its newest ready
revision after ``prod`` was removed. When a plan shrinks, the oldest adapters keep their pins.
"""

from collections.abc import Collection, Iterator

from sqlalchemy.orm import Mapped
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from control_plane.audit import service as audit
from control_plane.publishing.outbox import publish_bulk, publish_change
from control_plane.registry.adapters import pin_history
from control_plane.registry.models import Adapter, AdapterRevocation, Alias, Revision
from control_plane.tenants import service as tenants
from core.contracts.routes import PROD, Pin
from core.errors import Forbidden


def set_pinned(session: Session, adapter: Adapter, *, pinned: bool, actor: str) -> None:
    """Pin or unpin an adapter. Raises Forbidden when the plan's limit is reached. The caller must hold no row lock
    yet.
    """
    tenant = tenants.lock(session, adapter.tenant_id)
    session.refresh(adapter)
    if adapter.pinned == pinned:
        return
    allowed = tenant.limits.pinned_adapters
    if pinned and len(session.exec(_pinned(adapter.tenant_id)).all()) >= allowed:
        raise Forbidden(
            f'pinned: plan "{tenant.plan}" keeps {allowed} adapters in memory. Unpin another one or change the plan.',
            code="pin_quota_exceeded",
            param="pinned",
        )
    adapter.pinned = pinned
    session.add(adapter)
    session.flush()
    _republish(session, adapter)
    if not pinned:
        refresh_tenants(session, [adapter.tenant_id])  # another pinned adapter may now be within the limit
    action = "adapter.pinned" if pinned else "adapter.unpinned"
    audit.record(session, actor=actor, action=action, target=adapter.id, tenant_id=adapter.tenant_id)


def refresh(session: Session, adapter: Adapter) -> None:
    """Publish a pinned adapter's pins again, after a change of the revisions that its name serves or of its
    revocation.
    """
    if adapter.pinned:
        _republish(session, adapter)


def refresh_tenants(session: Session, tenant_ids: Collection[str], *, bulk: bool = False) -> None:
    """Publish the pins of all pinned adapters of these tenants again, after a possible change of the plan's limit or of
    the adapters that count against it. ``bulk`` lets other changes pass them.
    """
    theirs = select(Adapter).where(col(Adapter.tenant_id).in_(tenant_ids), col(Adapter.pinned))
    for adapter in session.exec(theirs.where(col(Adapter.deleted_at).is_(None))).all():
        _republish(session, adapter, bulk=bulk)


def pin(session: Session, engine_name: str) -> Pin | None:
    """The published pin of an engine name. None where it must not be kept in memory."""
    adapter = session.get(Adapter, engine_name.partition("@")[0])
    if adapter is None or adapter.id not in _within_plan(session, adapter.tenant_id):
        return None
    return next((each for each in _pins_of(session, adapter) if each.engine_name == engine_name), None)


def correct_history(session: Session) -> int:
    """Note the pins that are in force although the history does not know it, and the other way round; publish them
    again. Returns for how many adapters: two changes at the same time that do not see each other are a cause.

    The caller has begun a transaction that reads one state (repeatable read).
    """
    pinned = select(Adapter).where(col(Adapter.pinned), col(Adapter.deleted_at).is_(None))
    known = select(Adapter).where(col(Adapter.id).in_(pin_history.adapters_with_pins(session)))
    adapters = {adapter.id: adapter for wanted in (pinned, known) for adapter in session.exec(wanted).all()}
    wrong = [
        adapter
        for _, adapter in sorted(adapters.items())
        if pin_history.differs(session, adapter, _pins_in_force(session, adapter))
    ]
    for adapter in wrong:
        _republish(session, adapter)
    return len(wrong)


def all_pins(session: Session) -> Iterator[tuple[str, Pin]]:
    """All published pins, by engine name."""
    holders = select(Adapter.tenant_id).where(col(Adapter.pinned), col(Adapter.deleted_at).is_(None)).distinct()
    for tenant_id in session.exec(holders).all():
        within_plan = _within_plan(session, tenant_id)
        for adapter in session.exec(_pinned(tenant_id)).all():
            if adapter.id in within_plan:
                yield from ((each.engine_name, each) for each in _pins_of(session, adapter))


def _republish(session: Session, adapter: Adapter, *, bulk: bool = False) -> None:
    """Publish every engine name that may be or may have been pinned; ``pin`` decides when the relay reads it. Note from
    when on which of them are in force, since tenants pay for that.
    """
    ready = select(Revision.digest).where(Revision.adapter_id == adapter.id, Revision.status == "ready")
    names = [f"{adapter.id}@{digest}" for digest in session.exec(ready.distinct())]
    if bulk:
        publish_bulk(session, "pins", names)
    else:
        for name in names:
            publish_change(session, "pins", name)
    pin_history.record(session, adapter, _pins_in_force(session, adapter))


def _pins_in_force(session: Session, adapter: Adapter) -> list[Pin]:
    return list(_pins_of(session, adapter)) if adapter.id in _within_plan(session, adapter.tenant_id) else []


def _within_plan(session: Session, tenant_id: str) -> set[str]:
    """The pinned adapters within the tenant's limit. Empty while the tenant is suspended."""
    tenant = tenants.get(session, tenant_id)
    if tenant.status != "active":
        return set()
    return {adapter.id for adapter in session.exec(_pinned(tenant_id).limit(tenant.limits.pinned_adapters))}


def _pins_of(session: Session, adapter: Adapter) -> Iterator[Pin]:
    prod = session.get(Alias, (adapter.id, PROD))
    ready = select(Revision).where(Revision.adapter_id == adapter.id, Revision.status == "ready")
    if prod is not None:
        served = ready.where(col(Revision.id).in_(prod.weights))
    else:
        served = ready.order_by(col(Revision.id).desc()).limit(1)
    pins = {}  # two revisions may have one digest, and then share a pin
    for revision in session.exec(served):
        if revision.rank_class is not None:
            name = f"{adapter.id}@{revision.digest}"
            pins[name] = Pin(
                engine_name=name,
                tenant_id=adapter.tenant_id,
                base_model=adapter.base_model,
                rank_class=revision.rank_class,
            )
    yield from pins.values()


def _pinned(tenant_id: str) -> SelectOfScalar[Adapter]:
    """The tenant's live pinned adapters that are not revoked, oldest first."""
    mine = select(Adapter).where(
        Adapter.tenant_id == tenant_id,
        col(Adapter.pinned),
        col(Adapter.deleted_at).is_(None),
        ~unlifted(col(Adapter.id)).exists(),
    )
    return mine.order_by(col(Adapter.id))


def unlifted(adapter_id: str | Mapped[str]) -> SelectOfScalar[AdapterRevocation]:
    """The revocations of an adapter that are in force."""
    of_adapter = col(AdapterRevocation.adapter_id) == adapter_id
    return select(AdapterRevocation).where(of_adapter, col(AdapterRevocation.lifted_at).is_(None))
