"""Drains a replica, and undoes that. The request is a key in Redis that the replica's agent reads with every heartbeat.

The last ready replica that serves something is drained only by force. Drains are decided one at a time, so that two
admins cannot drain the last two replicas at once. Fails closed without Redis or Postgres.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from redis import Redis
from sqlalchemy import text
from sqlmodel import Session

from control_plane.audit import service as audit
from control_plane.fleet import service
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
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    alive = service.list_replicas(redis)
    replica = _found(alive, replica_id)
    if replica.drain_requested:
        return replica
    if not force and (lost := unserved_without(replica, alive, adapter_classes(session, replica.base_model))):
        raise Conflict(
            f"{replica_id} is the last ready replica for {' and '.join(lost)}. Start another one first, or send "
            '{"force": true} to drain it all the same.',
            code="last_ready_replica",
        )
    audit.record(session, actor=actor, action="replica.drained", target=replica_id, details={"force": force})
    session.flush()  # a drain that cannot be recorded does not happen
    redis.set(redis_keys.replica_drain(replica_id), "1")
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


def unserved_without(replica: ReplicaView, alive: Sequence[ReplicaView], needed: Collection[int]) -> list[str]:
    """What no other ready replica would serve: its base model, or the adapters of some of its rank classes, of which
    ``needed`` have adapters. A replica that serves nothing now takes nothing away. Pure.
    """
    if replica.state != "ready":
        return []
    others = [
        each.rank_max
        for each in alive
        if each.id != replica.id
        and each.base_model == replica.base_model
        and each.state == "ready"
        and not each.drain_requested
    ]
    if not others:
        return [f"base model {replica.base_model}"]
    lost = [rank for rank in sorted(needed) if fits(rank, replica.rank_max) and not fits(rank, max(others))]
    return [f"adapters of rank class {rank} of {replica.base_model}" for rank in lost]


def _found(alive: Sequence[ReplicaView], replica_id: str) -> ReplicaView:
    for each in alive:
        if each.id == replica_id:
            return each
    raise NotFound(
        "No live replica with this id. GET /api/v1/admin/replicas lists the live ones.", code="replica_not_found"
    )
