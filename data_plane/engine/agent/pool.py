"""The replicas of one base model as one of them sees the others: which of them should have an adapter before anybody
asks for it. Gateways place requests by ``data_plane.gateway.scheduling.placement``, which agrees on the cheapest class.
"""

import time
from collections.abc import Iterable
from typing import cast

import msgspec
import structlog
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.replicas import ReplicaStatus
from core.rank_classes import class_for

_log = structlog.get_logger()
_decoder = msgspec.json.Decoder(ReplicaStatus)


def in_pool_of(rank_class: int, replica: ReplicaStatus, live: Iterable[ReplicaStatus]) -> bool:
    """Whether adapters of this class are placed on this replica, by the rank classes of the live ones."""
    return class_for(rank_class, (replica.rank_max, *(other.rank_max for other in live))) == replica.rank_max


class ReplicaPool:
    """The live replicas of a base model as ``me`` sees them, read again once the last list is older than ``fresh_s``
    or is from before this replica was in it.
    """

    def __init__(self, redis: Redis, base_model: str, *, me: str, fresh_s: float) -> None:
        self._redis = redis
        self._base_model = base_model
        self._me = me
        self._fresh_s = fresh_s
        self._read_at = float("-inf")
        self._live: list[ReplicaStatus] = []

    async def live(self) -> list[ReplicaStatus]:
        """Those that are ready. Raises redis.RedisError."""
        is_fresh = time.monotonic() - self._read_at < self._fresh_s
        if not is_fresh or all(each.id != self._me for each in self._live):
            names = [
                name.decode() for name in cast("list[bytes]", await self._redis.zrange(redis_keys.REPLICAS, 0, -1))
            ]
            wanted = [redis_keys.replica(name) for name in names]
            values = cast("list[bytes | None]", await self._redis.mget(wanted)) if wanted else []
            statuses = [status for value in values if value is not None and (status := _status(value)) is not None]
            self._live = [each for each in statuses if each.base_model == self._base_model and each.state == "ready"]
            self._read_at = time.monotonic()
        return self._live


def _status(value: bytes) -> ReplicaStatus | None:
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        _log.error("a replica's status cannot be read", error=str(error))
        return None
