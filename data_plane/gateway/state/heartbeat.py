"""The heartbeat of this process. It names the snapshot that decides requests, and is written when that changes and each
second.

Fails closed: without a heartbeat the process serves no new requests, so a publisher that sees none need not wait for
it.
"""

import asyncio
import contextlib
import time
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.snapshots import GatewayStatus
from core.errors import Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.snapshot import Snapshot

_log = structlog.get_logger()
_FORGOTTEN_MS: Final = 86_400_000


class Heartbeat:
    """The heartbeat of one process, and whether it is recent enough to serve requests.

    A status stays in Redis for ``lease_s``, and this process serves for that long after it began to write it. A process
    whose status had expired serves again only when it has everything that was published by the time of its new status.
    So when a publisher sees its change in every status, no request that begins later is decided without the change.
    """

    def __init__(
        self, redis: Redis, snapshot: Snapshot, clock: RedisClock, gateway_id: str, *, period_s: float, lease_s: float
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._snapshot = snapshot
        self._id = gateway_id
        self._period_s = period_s
        self._lease_s = lease_s
        self._serves_until = 0.0

    @property
    def current(self) -> bool:
        """Whether this process may serve requests now."""
        return time.monotonic() < self._serves_until

    def require_current(self) -> None:
        """Raises Unavailable unless this process may serve requests now."""
        if not self.current:
            raise Unavailable(
                "This gateway cannot tell whether its configuration is current; try again in a second.",
                code="gateway_behind",
                retry_after_s=1,
            )

    async def run_forever(self) -> None:
        """Write the heartbeat every period, and at once when the snapshot advances. Never returns."""
        reachable = True
        while True:
            self._snapshot.advanced.clear()
            try:
                await self.write()
                reachable = True
            except (RedisError, OSError) as error:
                if reachable:
                    _log.warning("heartbeat not written; serving stops when the lease expires", error=repr(error))
                reachable = False
            # After a failure too: the snapshot's task is the first to notice that Redis is back.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._snapshot.advanced.wait()

    async def write(self) -> None:
        """Write the status once, and synchronize the clock with Redis. Raises redis.RedisError."""
        began, snapshot = time.monotonic(), self._snapshot
        # A connection that hangs must not outlast the lease: the next attempt takes another connection.
        async with asyncio.timeout(self._lease_s / 2), self._redis.pipeline(transaction=True) as pipe:
            if not self._clock.synchronized:  # with a wrong clock, the command below would remove the other gateways
                self._clock.synchronize(*await self._redis.time())
            now_ms = self._clock.now_ms()
            status = GatewayStatus(
                id=self._id, epoch=snapshot.epoch, generation=snapshot.generation, heartbeat_ms=now_ms
            )
            pipe.set(redis_keys.gateway(self._id), msgspec.json.encode(status), px=round(self._lease_s * 1000))
            pipe.zadd(redis_keys.GATEWAYS, {self._id: now_ms})
            pipe.zremrangebyscore(redis_keys.GATEWAYS, "-inf", now_ms - _FORGOTTEN_MS)
            pipe.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            pipe.time()
            *_, published, server_time = await pipe.execute()
        self._clock.synchronize(*server_time)
        # If the old status expired meanwhile, a publisher may have seen none and may not have waited.
        if time.monotonic() < self._serves_until or _has(status, published):
            self._serves_until = began + self._lease_s
        metrics.HEARTBEATS.inc()

    async def stop(self) -> None:
        """Stop serving, and remove the status so that no publisher waits for this process."""
        self._serves_until = 0.0
        with contextlib.suppress(RedisError, OSError):  # the status expires without this
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(redis_keys.gateway(self._id))
                pipe.zrem(redis_keys.GATEWAYS, self._id)
                await pipe.execute()


def _has(status: GatewayStatus, published: list[Any]) -> bool:
    """Whether the process that wrote a status had everything that was published by then."""
    epoch, generation = published
    if epoch is None or generation is None:
        return False
    return status.epoch == epoch.decode() and status.generation >= int(generation)
