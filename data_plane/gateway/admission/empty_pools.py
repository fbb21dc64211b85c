"""What a request may expect whose base model has no replica: the fleet process may start one for it.

Fails closed: where Redis does not say what the fleet wants, no replica is expected, and the request is refused.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.fleet import WantedPool, read_wanted
from core.rank_classes import fits
from data_plane.gateway.api.inference_request import InferenceRequest

_READ_S: Final = 1.0
_START_S: Final = 60  # before the first start of a pool's replica was measured
_DECIDED_S: Final = 3  # a report, and a round of the fleet process
_log = structlog.get_logger()


class EmptyPools:
    """The pools that have or may get replicas, as the fleet process wrote them."""

    def __init__(self, redis: Redis, now_ms: Callable[[], int]) -> None:
        self._redis = redis
        self._now_ms = now_ms
        self._reading: asyncio.Task[list[WantedPool] | None] | None = None

    async def ready_in_s(self, request: InferenceRequest) -> float | None:
        """Seconds until a replica that serves the request may be ready; infinite where its pools can have none now, or
        where Redis does not say so; None where no pool serves it.
        """
        if self._reading is None or self._reading.done():  # requests that come together share one read
            self._reading = asyncio.create_task(self._read())
        wanted = await asyncio.shield(self._reading)
        if wanted is None:
            return math.inf
        fitting = [
            pool
            for pool in wanted
            if pool.base_model == request.base_model
            and fits(request.rank, pool.rank_max)
            and pool.pool not in request.closed_pools
        ]
        return min(map(self._ready_in_s, fitting), default=None)

    def _ready_in_s(self, pool: WantedPool) -> float:
        if pool.replicas_max <= 0:
            return math.inf
        start_s = pool.start_s or _START_S
        if not pool.revisions:
            return start_s + _DECIDED_S
        return max(start_s - (self._now_ms() - pool.grew_ms) / 1000, 1.0)

    async def _read(self) -> list[WantedPool] | None:
        try:
            async with asyncio.timeout(_READ_S):
                found = await self._redis.hgetall(redis_keys.FLEET_WANTED)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            _log.warning("wanted replicas unreadable; none are expected", error=repr(error))
            return None
        entries = (read_wanted(entry) for entry in found.values() if isinstance(entry, bytes))
        return [pool for pool in entries if pool is not None]
