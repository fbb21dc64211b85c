"""Collects when each adapter was last used and writes it to Redis once a second. Replicas forecast future use from it.

The data only affects speed: while Redis is away, the gateway drops what it has collected.
"""

import asyncio
import time

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from data_plane.gateway.state.redis_clock import RedisClock

_log = structlog.get_logger()


class AdapterLastUsed:
    """The last uses since the previous write, at most ``names_max``. Redis keeps the newest ``stored_max``."""

    def __init__(self, redis: Redis, clock: RedisClock, *, flush_s: float, names_max: int, stored_max: int) -> None:
        self._redis = redis
        self._clock = clock
        self._flush_s = flush_s
        self._names_max = names_max
        self._stored_max = stored_max
        self._used_at_ms: dict[tuple[str, int, str], int] = {}

    def record(self, base_model: str, rank_max: int, engine_name: str) -> None:
        """Record that an adapter has just served a request on a replica of the pool with this largest rank."""
        use = (base_model, rank_max, engine_name)
        if use in self._used_at_ms or len(self._used_at_ms) < self._names_max:
            self._used_at_ms[use] = self._clock.now_ms()

    async def run_forever(self) -> None:
        """Write every ``flush_s``. Never returns."""
        warned_at = -60.0
        while True:
            await asyncio.sleep(self._flush_s)
            try:
                await self.flush()
            except (RedisError, OSError) as error:
                if time.monotonic() - warned_at >= 60:
                    warned_at = time.monotonic()
                    _log.warning("last uses of adapters not written", error=repr(error))

    async def flush(self) -> None:
        """Write what was collected. A stored time never moves back. Raises redis.RedisError."""
        gathered, self._used_at_ms = self._used_at_ms, {}
        if not gathered:
            return
        by_pool: dict[str, dict[str, int]] = {}
        for (base_model, rank_max, engine_name), at_ms in gathered.items():
            by_pool.setdefault(redis_keys.adapter_heat(base_model, rank_max), {})[engine_name] = at_ms
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, uses in by_pool.items():
                pipe.zadd(key, dict(uses), gt=True)
                pipe.zremrangebyrank(key, 0, -self._stored_max - 1)
            await pipe.execute()
