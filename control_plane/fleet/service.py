"""Which replicas are alive, as their agents report to Redis, and the wish that one be drained. Nothing is in Postgres.

Fails closed: without Redis there is no answer rather than an empty list.
"""

from typing import cast

import msgspec
from redis import Redis

from control_plane.fleet.schemas import ReplicaView
from core import clock, keys
from core.contracts import ReplicaStatus
from core.errors import NotFound

_REPLICAS_MAX = 10_000


def list_replicas(redis: Redis) -> list[ReplicaView]:
    """Every replica whose status has not expired, by id."""
    ids = sorted(
        replica_id.decode() for replica_id in cast("list[bytes]", redis.zrange(keys.REPLICAS, 0, _REPLICAS_MAX - 1))
    )
    if not ids:
        return []
    wanted = [keys.replica(replica_id) for replica_id in ids] + [keys.replica_drain(replica_id) for replica_id in ids]
    values = cast("list[bytes | None]", redis.mget(wanted))
    statuses, drains = values[: len(ids)], values[len(ids) :]
    return [
        _view(status, drain is not None) for status, drain in zip(statuses, drains, strict=True) if status is not None
    ]


def drain(redis: Redis, replica_id: str) -> ReplicaView:
    """Ask a live replica to take no more requests and finish those it has; its agent looks for this."""
    status = cast("bytes | None", redis.get(keys.replica(replica_id)))
    if status is None:
        raise NotFound(
            "replica: none with this id is alive; GET /api/v1/admin/replicas lists them.", code="replica_not_found"
        )
    redis.set(keys.replica_drain(replica_id), "1")
    return _view(status, drain_requested=True)


def _view(status: bytes, drain_requested: bool) -> ReplicaView:
    replica = msgspec.json.decode(status, type=ReplicaStatus)
    return ReplicaView(
        id=replica.id,
        base_model=replica.base_model,
        state=replica.state,
        drain_requested=drain_requested,
        block_tokens=replica.block_tokens,
        pages_total=replica.pages_total,
        pages_free=replica.pages_free,
        slots=replica.slots,
        running_requests=replica.running_requests,
        waiting_requests=replica.waiting_requests,
        resident=list(replica.resident),
        url=replica.url,
        heartbeat_at=clock.from_ms(replica.heartbeat_ms),
    )
