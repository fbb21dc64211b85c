"""Settles what dead gateways left to tenants that nobody asks for any more: each by its last checkpoint.

Every gateway sweeps, and the script makes sure that each orphan is settled once. Fails open: an orphan that is found
late is only settled late.
"""

import asyncio
import time

import structlog
from redis.exceptions import RedisError

from core import redis_keys
from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Reservations
from data_plane.gateway.state.redis_connection import RedisConnection

_log = structlog.get_logger()


class Sweeper:
    """Sweeps tenants by the time at which their next lease runs out. After Redis was away it waits for ``grace_s``, in
    which those who are alive renew their leases.
    """

    def __init__(
        self, line: RedisConnection, reservations: Reservations, *, every_s: float, tenants_max: int, grace_s: float
    ) -> None:
        self._line = line
        self._reservations = reservations
        self._every_s = every_s
        self._tenants_max = tenants_max
        self._grace_s = grace_s

    async def run_forever(self) -> None:
        """Sweep again and again, for ever."""
        not_before, connection = time.monotonic() + self._grace_s, self._line.connection
        while True:
            await asyncio.sleep(self._every_s)
            if self._line.connection != connection:
                not_before, connection = time.monotonic() + self._grace_s, self._line.connection
            if time.monotonic() < not_before:
                continue
            try:
                await self.sweep()
            except (RedisError, OSError) as error:
                not_before = time.monotonic() + self._grace_s
                _log.warning("orphans cannot be swept", error=repr(error))

    async def sweep(self) -> int:
        """Settle what has run out by Redis's own clock; returns how many requests. Raises redis.RedisError."""
        seconds, microseconds = await self._line.call("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        tenants = await self._line.call(
            "ZRANGE", redis_keys.LEASED_TENANTS, "-inf", now_ms, "BYSCORE", "LIMIT", 0, self._tenants_max
        )
        swept = 0
        for tenant in tenants:
            swept += await self._reservations.sweep(tenant.decode())
        if swept:
            metrics.SWEPT_REQUESTS.inc(swept)
            _log.warning("settled requests whose gateway is gone", requests=swept)
        return swept
