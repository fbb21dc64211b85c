"""What a request may expect whose base model has no replica: the fleet process may start one for it.

Fails closed: where Redis does not say what the fleet wants, no replica is expected, and the request is refused.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.fleet import WantedPool, read_wanted
from core.rank_classes import fits

_READ_S: Final = 1.0
_START_S: Final = 60  # before the first start of a pool's replica was measured
_DECIDED_S: Final = 3  # a report, and a round of the fleet process
_log = structlog.get_logger()


class EmptyPools:
    """The pools that have or may get replicas, as the fleet process wrote them."""

    def __init__(self, redis: Redis, now_ms: Callable[[], int]) -> None:
        self._redis = redis
        self._now_ms = now_ms
        self._reading: asyncio.Task[list[WantedPool]] | None = None

    async def ready_in_s(self, base_model: str, rank: int) -> float | None:
        """Seconds until a replica for adapters of this rank may be ready; None where no pool can have one."""
        if self._reading is None or self._reading.done():  # requests that come together share one read
            self._reading = asyncio.create_task(self._read())
        fitting = [
            pool
            for pool in await asyncio.shield(self._reading)
            if pool.base_model == base_model and fits(rank, pool.rank_max) and pool.replicas_max > 0
        ]
        return min(map(self._ready_in_s, fitting), default=None)

    def _ready_in_s(self, pool: WantedPool) -> float:
        start_s = pool.start_s or _START_S
        if not pool.revisions:
            return start_s + _DECIDED_S
        return max(start_s - (self._now_ms() - pool.grew_ms) / 1000, 1.0)

    async def _read(self) -> list[WantedPool]:
        try:
            async with asyncio.timeout(_READ_S):
                found = await self._redis.hgetall(redis_keys.FLEET_WANTED)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            _log.warning("wanted replicas unreadable; none are expected", error=repr(error))
            return []
        entries = (read_wanted(entry) for entry in found.values() if isinstance(entry, bytes))
        return [pool for pool in entries if pool is not None]
