"""A new replica runs a few adapters that other replicas serve before it is ready, so that a revision that breaks
adapters never gets a request. Where no replica serves an adapter, or a run gives no verdict, the replica starts.
"""

import random
from collections.abc import Callable
from typing import Final, cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.canary import CanaryJob
from core.contracts.replicas import Residency
from data_plane.engine.agent.canary.jobs import NO_VERDICT, CanaryJobs
from data_plane.engine.agent.live_replicas import LiveReplicas
from data_plane.engine.settings import ReplicaSettings

_log: Final = structlog.get_logger()


class StartCanary:
    """``canaries`` runs the adapters, and ``is_revoked`` says which may not run."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        replicas: LiveReplicas,
        canaries: CanaryJobs,
        *,
        is_revoked: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._replicas = replicas
        self._canaries = canaries
        self._is_revoked = is_revoked

    async def failure(self) -> str:
        """Why this engine must not serve adapters; "" for no reason."""
        for name in await self._served():
            job = CanaryJob(
                revision_id="", base_model=self._settings.base_model, engine_name=name,
                rank_class=self._settings.engine_rank_max, attempt=1,
            )  # fmt: skip
            try:
                result = await self._canaries.verdict(job)
            except NO_VERDICT as error:
                _log.warning("canary at the start gave no verdict", adapter=name, error=repr(error))
                continue
            if result.code is not None:
                return f"{result.code}: adapter {name}, which other replicas serve: {result.message}"
        return ""

    async def _served(self) -> list[str]:
        """Some adapters in slots of other replicas of the same pool, others at each start: one that fails by chance
        must not keep every new replica away.
        """
        mine, most = self._settings, self._settings.canary_start_adapters_max
        try:
            others = [
                each.id
                for each in await self._replicas.live()
                if (each.pool, each.rank_max) == (mine.pool, mine.engine_rank_max) and each.id != mine.replica_id
            ]
            names = [redis_keys.replica_residency(each) for each in others]
            values = cast("list[bytes | None]", await self._redis.mget(names)) if names and most else []
        except (RedisError, OSError) as error:
            _log.warning("adapters of other replicas are unknown", error=repr(error))
            return []
        found = set[str]()
        for value in values:
            if value is not None:
                found |= {name for name in msgspec.json.decode(value, type=Residency).slots if name is not None}
        able = sorted(name for name in found if not self._is_revoked(name))
        return random.sample(able, min(most, len(able)))
