"""Whether Redis may have forgotten what it was told: it restarted, another took its place, or its data are gone.

Fails open: while Redis does not answer, nothing is known, and who asks asks again.
"""

from redis.exceptions import RedisError

from core import redis_keys
from data_plane.gateway.state.redis_connection import RedisConnection


class RedisMemory:
    """A mark in Redis that is missed when it is gone, and an eye on the line to it. ``kept_s`` is how long the mark
    outlives the last look.
    """

    def __init__(self, line: RedisConnection, gateway_id: str, *, kept_s: int) -> None:
        self._line = line
        self._key = redis_keys.gateway_mark(gateway_id)
        self._kept_s = kept_s
        self._connection = 0
        self._generation = 0

    async def recorded(self) -> bytes | None:
        """Entries of the usage stream below this one are in billing's ledger; None where nobody says so."""
        try:
            recorded: bytes | None = await self._line.call("GET", redis_keys.USAGE_RECORDED)
        except (RedisError, OSError):
            return None
        return recorded

    async def generation(self) -> int:
        """A number that grows whenever something may have been forgotten; 0 where Redis does not answer."""
        try:
            mark = await self._line.call("SET", self._key, 1, "GET", "EX", self._kept_s)
        except (RedisError, OSError):
            return 0
        if mark is None or self._line.connection != self._connection:
            self._connection = self._line.connection
            self._generation += 1
        return self._generation
