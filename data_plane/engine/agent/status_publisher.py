"""Publishes a replica's status and its residency to Redis.

The agent decides the content. Fails open: without Redis, gateways only stop using this replica.
"""

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.clock import now_ms
from core.contracts.replicas import ReplicaState, ReplicaStatus, Residency
from core.kv_pages import PAGE_TOKENS
from data_plane.engine.agent import metrics
from data_plane.engine.agent.engine_client import EngineMetrics
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()


class StatusPublisher:
    """Writes the Redis keys of one replica. ``url`` is the engine's address for gateways."""

    def __init__(self, settings: ReplicaSettings, redis: Redis, *, url: str, boot_id: str) -> None:
        self._settings = settings
        self._redis = redis
        self._url = url
        self._boot_id = boot_id
        self._ttl_ms = int(settings.status_ttl_s * 1000)
        self._written_version = 0

    async def publish(
        self, state: ReplicaState, engine: EngineMetrics, residency: Residency | None, *, reason: str
    ) -> bool | None:
        """Write everything in one transaction. Returns whether an admin requested a drain, None without Redis."""
        status = self._status(state, engine, residency, reason)
        metrics.FREE_PAGES.set(status.pages_free)
        metrics.READY.set(status.state == "ready")
        where = redis_keys.replica_residency(status.id)
        writes = residency is not None and residency.version != self._written_version
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                if writes:
                    pipe.set(where, msgspec.json.encode(residency), px=self._ttl_ms)
                else:
                    pipe.pexpire(where, self._ttl_ms)
                pipe.set(redis_keys.replica(status.id), msgspec.json.encode(status), px=self._ttl_ms)
                pipe.zadd(redis_keys.REPLICAS, {status.id: status.heartbeat_ms})
                pipe.exists(redis_keys.replica_drain(status.id))
                is_there, *_, drain_wanted = await pipe.execute()
        except (RedisError, OSError) as error:
            _log.warning("status publish failed", error=repr(error))
            return None
        # A residency that has expired meanwhile is written again the next time.
        self._written_version = status.residency_version if is_there else 0
        return bool(drain_wanted)

    async def withdraw(self) -> None:
        """Remove this replica's keys, so that gateways stop using it now instead of when its status expires. The
        request to drain it is removed too: a drain lasts until the replica is restarted.
        """
        replica_id = self._settings.replica_id
        try:
            await self._redis.delete(
                redis_keys.replica(replica_id),
                redis_keys.replica_drain(replica_id),
                redis_keys.replica_residency(replica_id),
            )
            await self._redis.zrem(redis_keys.REPLICAS, replica_id)
        except (RedisError, OSError) as error:
            _log.warning("status withdrawal failed; it expires by itself", error=repr(error))

    def _status(
        self, state: ReplicaState, engine: EngineMetrics, residency: Residency | None, reason: str
    ) -> ReplicaStatus:
        pages_total = engine.blocks * engine.block_tokens // PAGE_TOKENS
        return ReplicaStatus(
            id=self._settings.replica_id,
            url=self._url,
            base_model=self._settings.base_model,
            state=state,
            boot_id=self._boot_id,
            block_tokens=engine.block_tokens,
            pages_total=pages_total,
            pages_free=round(pages_total * (1 - engine.kv_used)),
            slots=self._settings.engine_slots,
            running_requests=engine.running,
            waiting_requests=engine.waiting,
            heartbeat_ms=now_ms(),
            counted_tokens=engine.prompt_tokens + engine.generation_tokens,
            rank_max=self._settings.engine_rank_max,
            memory_adapters=self._settings.memory_adapters,
            residency_version=0 if residency is None else residency.version,
            reason=reason,
        )
