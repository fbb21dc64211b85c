"""Settles requests of dead gateways whose tenants send no other requests, each by its last checkpoint.

Every gateway sweeps, and sweep.lua settles each orphaned request once. Fails open: an orphan that is found late is only
settled late.
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


class LeaseSweeper:
    """Sweeps tenants in the order in which their next leases expire. After an outage of Redis it waits for ``grace_s``,
    so that live gateways can renew their leases.
    """

    def __init__(
        self, redis: RedisConnection, reservations: Reservations, *, every_s: float, tenants_max: int, grace_s: float
    ) -> None:
        self._redis = redis
        self._reservations = reservations
        self._every_s = every_s
        self._tenants_max = tenants_max
        self._grace_s = grace_s

    async def run_forever(self) -> None:
        """Sweep periodically until cancelled."""
        not_before, connection = time.monotonic() + self._grace_s, self._redis.connection
        while True:
            await asyncio.sleep(self._every_s)
            if self._redis.connection != connection:
                not_before, connection = time.monotonic() + self._grace_s, self._redis.connection
            if time.monotonic() < not_before:
                continue
            try:
                await self.run_once()
            except (RedisError, OSError) as error:
                not_before = time.monotonic() + self._grace_s
                _log.warning("sweep failed", error=repr(error))

    async def run_once(self) -> int:
        """Settle the requests whose leases expired by Redis's clock. Returns their number. Raises redis.RedisError."""
        seconds, microseconds = await self._redis.call("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        tenants = await self._redis.call(
            "ZRANGE", redis_keys.LEASED_TENANTS, "-inf", now_ms, "BYSCORE", "LIMIT", 0, self._tenants_max
        )
        swept = 0
        for tenant in tenants:
            swept += await self._reservations.sweep(tenant.decode())
        if swept:
            metrics.SWEPT_REQUESTS.inc(swept)
            _log.warning("requests of dead gateways settled", requests=swept)
        return swept
