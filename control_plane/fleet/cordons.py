"""Cordons: replicas and nodes that get no requests until an admin lifts that. A cordon is a row, and so outlives
restarts and a Redis that lost its data. Agents read the published cordons and drain; ``drains`` are for one boot.
"""

from collections.abc import Iterator

from redis import Redis
from sqlmodel import Session, select

from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.fleet import drains, service
from control_plane.fleet.drains import AdapterClasses
from control_plane.fleet.models import CordonRow
from control_plane.fleet.schemas import CordonView, NewCordon
from control_plane.publishing.outbox import publish_change
from core.contracts.replicas import Cordon, CordonKind
from core.errors import NotFound
from core.struct_types import view_of


def put(
    session: Session,
    redis: Redis,
    kind: CordonKind,
    name: str,
    given: NewCordon,
    *,
    adapter_classes: AdapterClasses,
    principal: Principal,
) -> CordonView:
    """Cordon a replica or a node, which need not be there yet, or change the reason. Raises Conflict for the last
    replicas that serve something, unless ``force`` is set.
    """
    drains.lock(session)
    row = session.get(CordonRow, (kind, name))
    if row is None:
        alive = service.list_replicas(redis)
        gone = [each for each in alive if (each.id if kind == "replica" else each.node) == name]
        drains.require_others(session, gone, alive, adapter_classes, what=f"{kind} {name}", force=given.force)
        row = CordonRow(kind=kind, name=name, reason=given.reason)
    row.reason = given.reason
    session.add(row)
    session.flush()
    publish_change(session, "cordons", f"{kind}/{name}")
    audited(session, principal, "cordon.put", f"{kind}/{name}", details=given)
    return view_of(row, CordonView)


def lift(session: Session, kind: CordonKind, name: str, *, principal: Principal) -> CordonView:
    """Let a replica or node serve again, from its next look at the cordons on. Raises NotFound."""
    drains.lock(session)
    row = session.get(CordonRow, (kind, name))
    if row is None:
        raise NotFound(
            f"No cordon of the {kind} {name}. GET /api/v1/admin/cordons lists them.", code="cordon_not_found"
        )
    view = view_of(row, CordonView)
    session.delete(row)
    session.flush()
    publish_change(session, "cordons", f"{kind}/{name}")
    audited(session, principal, "cordon.lifted", f"{kind}/{name}")
    return view


def every(session: Session) -> list[CordonView]:
    """All cordons, by kind and name."""
    rows = session.exec(select(CordonRow).order_by(CordonRow.kind, CordonRow.name)).all()
    return [view_of(row, CordonView) for row in rows]


def published_cordon(session: Session, field: str) -> Cordon | None:
    """The published form of ``<kind>/<name>``; None without such a cordon."""
    kind, _, name = field.partition("/")
    row = session.get(CordonRow, (kind, name))
    return None if row is None else Cordon(reason=row.reason)


def published_cordons(session: Session) -> Iterator[tuple[str, Cordon]]:
    """All cordons by their published field."""
    return ((f"{each.kind}/{each.name}", Cordon(reason=each.reason)) for each in every(session))
