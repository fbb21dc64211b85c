"""The live replicas of one base model, as one of them sees the others, to decide which replica prefetches an adapter.

Gateways place requests by ``data_plane.gateway.scheduling.placement``, which chooses the same rank class.
"""

import time
from collections.abc import Iterable
from typing import cast

from redis.asyncio import Redis

from core import redis_keys
from core.contracts.replicas import ReplicaStatus, read_status
from core.rank_classes import class_for


def in_placement_group(rank_class: int, replica: ReplicaStatus, live: Iterable[ReplicaStatus]) -> bool:
    """Whether adapters of this class are placed on this replica, given the rank classes of the live replicas."""
    return class_for(rank_class, (replica.rank_max, *(other.rank_max for other in live))) == replica.rank_max


class LiveReplicas:
    """The live replicas of a base model, as ``me`` sees them. The list is read again when it is older than ``fresh_s``
    or does not contain this replica yet.
    """

    def __init__(self, redis: Redis, base_model: str, *, me: str, fresh_s: float) -> None:
        self._redis = redis
        self._base_model = base_model
        self._me = me
        self._fresh_s = fresh_s
        self._read_at = float("-inf")
        self._live: list[ReplicaStatus] = []

    async def live(self) -> list[ReplicaStatus]:
        """The ready replicas. Raises redis.RedisError."""
        is_fresh = time.monotonic() - self._read_at < self._fresh_s
        if not is_fresh or all(each.id != self._me for each in self._live):
            names = [
                name.decode() for name in cast("list[bytes]", await self._redis.zrange(redis_keys.REPLICAS, 0, -1))
            ]
            wanted = [redis_keys.replica(name) for name in names]
            values = cast("list[bytes | None]", await self._redis.mget(wanted)) if wanted else []
            statuses = [status for value in values if value is not None and (status := read_status(value)) is not None]
            self._live = [each for each in statuses if each.base_model == self._base_model and each.state == "ready"]
            self._read_at = time.monotonic()
        return self._live
