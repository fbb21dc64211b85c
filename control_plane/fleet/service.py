"""Reads live replicas from their agents' reports in Redis. Nothing is in Postgres. Drains are in ``drains``.

Fails closed: without Redis the call raises instead of returning an empty list.
"""

from typing import cast

import msgspec
from redis import Redis

from control_plane.fleet.schemas import ReplicaView, ResidencyView
from core import clock, redis_keys
from core.contracts.replicas import ReplicaStatus, Residency, read_status
from core.errors import NotFound
from core.struct_types import view_of

_REPLICAS_MAX = 10_000


def list_replicas(redis: Redis) -> list[ReplicaView]:
    """All replicas whose status has not expired, by id."""
    alive = published_statuses(redis)
    if not alive:
        return []
    drains = cast("list[bytes | None]", redis.mget([redis_keys.replica_drain(status.id) for status in alive]))
    return [_view(status, drain == status.boot_id.encode()) for status, drain in zip(alive, drains, strict=True)]


def statuses(redis: Redis) -> list[ReplicaStatus]:
    """The last report of every live agent whose engine has started, by id."""
    return [status for status in published_statuses(redis) if status.has_engine]


def published_statuses(redis: Redis) -> list[ReplicaStatus]:
    """The last report of every agent, by id, with those whose engine starts or has failed. Of more replicas than
    10,000, those with the newest reports.
    """
    ids = cast("list[bytes]", redis.zrevrange(redis_keys.REPLICAS, 0, _REPLICAS_MAX - 1))
    if not ids:
        return []
    encoded = cast(
        "list[bytes | None]", redis.mget([redis_keys.replica(each.decode(errors="replace")) for each in sorted(ids)])
    )
    found = (read_status(status) for status in encoded if status is not None)
    return [status for status in found if status is not None]


def published_residency(redis: Redis, replica_id: str) -> Residency | None:
    """The adapters in each tier of a replica, as its agent last published them. None without a publication."""
    encoded = cast("bytes | None", redis.get(redis_keys.replica_residency(replica_id)))
    return None if encoded is None else msgspec.json.decode(encoded, type=Residency)


def residency(redis: Redis, replica_id: str) -> ResidencyView:
    """The adapters in each tier of a live replica, as its engine reports them. Raises NotFound without a
    publication.
    """
    found = published_residency(redis, replica_id)
    if found is None:
        raise NotFound(
            "No live replica with this id publishes its adapters. GET /api/v1/admin/replicas lists the live ones.",
            code="replica_not_found",
        )
    return ResidencyView(
        replica=found.replica_id,
        boot_id=found.boot_id,
        version=found.version,
        slots=list(found.slots),
        memory=list(found.memory),
        disk=list(found.disk),
    )


def _view(replica: ReplicaStatus, drain_requested: bool) -> ReplicaView:
    return view_of(
        replica,
        ReplicaView,
        reason=replica.reason or None,
        drain_requested=drain_requested,
        heartbeat_at=clock.from_ms(replica.heartbeat_ms),
    )
