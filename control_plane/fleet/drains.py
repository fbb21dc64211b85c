"""Drains a replica, and undoes that. The request is a key in Redis that the replica's agent reads with every heartbeat.
It names the boot that drains: after a restart the replica serves again.

The last ready replica that serves something is drained only by force. Drains are decided one at a time, so that two
admins cannot drain the last two replicas at once. Fails closed without Redis or Postgres.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from redis import Redis
from sqlalchemy import text
from sqlmodel import Session, select

from control_plane.audit import service as audit
from control_plane.fleet import service
from control_plane.fleet.models import CordonRow
from control_plane.fleet.schemas import ReplicaView
from core import redis_keys
from core.errors import Conflict, NotFound
from core.rank_classes import fits

AdapterClasses = Callable[[Session, str], Collection[int]]
"""The rank classes of a base model that have adapters."""

_LOCK: Final = 7_301_945_131  # any fixed number; held until the decision is committed


def drain(
    session: Session, redis: Redis, replica_id: str, *, adapter_classes: AdapterClasses, force: bool, actor: str
) -> ReplicaView:
    """Request that a live replica accept no new requests and finish its running ones. Raises NotFound, and Conflict for
    the last replica that serves something, unless ``force`` is set.
    """
    lock(session)
    alive = service.list_replicas(redis)
    replica = _found(alive, replica_id)
    if replica.drain_requested:
        return replica
    require_others(session, [replica], alive, adapter_classes, what=replica_id, force=force)
    audit.record(session, actor=actor, action="replica.drained", target=replica_id, details={"force": force})
    session.flush()  # a drain that cannot be recorded does not happen
    redis.set(redis_keys.replica_drain(replica_id), replica.boot_id, ex=redis_keys.DRAIN_LASTS_S)
    return _found(service.list_replicas(redis), replica_id)


def undo(session: Session, redis: Redis, replica_id: str, *, actor: str) -> ReplicaView:
    """Let a drained replica accept requests again. Without a request to drain nothing changes. Raises NotFound."""
    replica = _found(service.list_replicas(redis), replica_id)
    if not replica.drain_requested:
        return replica
    audit.record(session, actor=actor, action="replica.drain_undone", target=replica_id)
    session.flush()
    redis.delete(redis_keys.replica_drain(replica_id))
    return _found(service.list_replicas(redis), replica_id)


def lock(session: Session) -> None:
    """Until the transaction ends, no other caller decides which replicas get no requests."""
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def require_others(
    session: Session,
    gone: Sequence[ReplicaView],
    alive: Sequence[ReplicaView],
    adapter_classes: AdapterClasses,
    *,
    what: str,
    force: bool,
) -> None:
    """Raises Conflict when no other ready replica serves what the ``gone`` ones do, unless ``force`` is set. A cordoned
    one serves nothing soon, also while its agent has not read that yet.
    """
    if force:
        return
    ids = {replica.id for replica in gone}
    cordoned = {(row.kind, row.name) for row in session.exec(select(CordonRow))}
    others = [
        each
        for each in alive
        if each.id not in ids and cordoned.isdisjoint({("replica", each.id), ("node", each.node)})
    ]
    lost = dict.fromkeys(
        each
        for replica in gone
        for each in unserved_without(replica, others, adapter_classes(session, replica.base_model))
    )
    if lost:
        raise Conflict(
            f"{what} is the last that is ready for {' and '.join(lost)}. Start another replica first, or send "
            '{"force": true} to do it all the same.',
            code="last_ready_replica",
        )


def unserved_without(replica: ReplicaView, others: Sequence[ReplicaView], needed: Collection[int]) -> list[str]:
    """What no ready replica of the ``others`` serves: its base model, or the adapters of some of its rank classes, of
    which ``needed`` have adapters. A replica that serves nothing now takes nothing away. Pure.
    """
    if replica.state != "ready":
        return []
    ranks = [
        each.rank_max
        for each in others
        if each.base_model == replica.base_model and each.state == "ready" and not each.drain_requested
    ]
    if not ranks:
        return [f"base model {replica.base_model}"]
    lost = [rank for rank in sorted(needed) if fits(rank, replica.rank_max) and not fits(rank, max(ranks))]
    return [f"adapters of rank class {rank} of {replica.base_model}" for rank in lost]


def _found(alive: Sequence[ReplicaView], replica_id: str) -> ReplicaView:
    for each in alive:
        if each.id == replica_id:
            return each
    raise NotFound(
        "No live replica with this id. GET /api/v1/admin/replicas lists the live ones.", code="replica_not_found"
    )
