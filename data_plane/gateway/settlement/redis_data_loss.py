"""Detects that Redis may have lost data: it restarted, another server replaced it, or its data were deleted.

Fails open: while Redis does not answer, the result is unknown and the caller tries again. The settler replays.
"""

from redis.exceptions import RedisError

from core import redis_keys
from data_plane.gateway.state.redis_connection import RedisConnection


class RedisDataLossDetector:
    """Watches the connection to Redis, and a mark in Redis whose absence shows a loss. The mark expires ``ttl_s``
    after the last check.
    """

    def __init__(self, redis: RedisConnection, gateway_id: str, *, ttl_s: int) -> None:
        self._redis = redis
        self._key = redis_keys.gateway_mark(gateway_id)
        self._ttl_s = ttl_s
        self._connection = 0
        self._generation = 0

    async def recorded(self) -> bytes | None:
        """The usage stream's entry below which all entries are in billing's ledger; None where that is unknown."""
        try:
            recorded: bytes | None = await self._redis.call("GET", redis_keys.USAGE_RECORDED)
        except (RedisError, OSError):
            return None
        return recorded

    async def generation(self) -> int:
        """A number that grows each time Redis may have lost data; 0 where Redis does not answer."""
        try:
            mark = await self._redis.call("SET", self._key, 1, "GET", "EX", self._ttl_s)
        except (RedisError, OSError):
            return 0
        if mark is None or self._redis.connection != self._connection:
            self._connection = self._redis.connection
            self._generation += 1
        return self._generation
