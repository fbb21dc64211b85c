"""Hints of alias flips and model listings from Redis, by which a replica prefetches adapters.

This module decides whether this replica is the one that should prefetch; ``prefetch`` does it.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import structlog
from redis.asyncio import Redis

from core import redis_keys, rendezvous_hash
from core.adapter_names import adapter_of
from core.contracts.replicas import ReplicaStatus
from core.contracts.routes import PrefetchHint
from data_plane.engine.agent import metrics
from data_plane.engine.agent.live_replicas import LiveReplicas, in_placement_group
from data_plane.engine.agent.prefetch import Prefetcher
from data_plane.engine.residency import EngineResidency
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_BLOCK_MS = 2000
_BATCH_MAX = 100
_hint = msgspec.json.Decoder(PrefetchHint)


def should_prefetch(
    name: str, rank_class: int, *, me: str, live: list[ReplicaStatus], resident: frozenset[str]
) -> bool:
    """Whether this replica should prefetch an adapter. Either ``resident``, the names in its slots and host memory,
    includes another revision of it, so that its requests are placed here; or it is the replica on which its whole
    placement group agrees.
    """
    mine = next((replica for replica in live if replica.id == me), None)
    if mine is None or mine.rank_max < rank_class:
        return False
    adapter = adapter_of(name) + "@"
    if any(other.startswith(adapter) and other != name for other in resident):
        return True
    group = [replica.id for replica in live if in_placement_group(rank_class, replica, live)]
    return rendezvous_hash.winner(name, group) == me


class PrefetchHints:
    """``run_once`` is repeated."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        replicas: LiveReplicas,
        prefetcher: Prefetcher,
        *,
        residency: Callable[[], EngineResidency | None],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._replicas = replicas
        self._prefetcher = prefetcher
        self._residency = residency
        self._last_id: str | None = None

    async def run_once(self) -> None:
        """Wait a moment for hints and apply them. Older ones than this agent are skipped. Raises RedisError."""
        if self._last_id is None:
            newest = cast("list[tuple[bytes, object]]", await self._redis.xrevrange(redis_keys.PREFETCH_HINTS, count=1))
            self._last_id = newest[0][0].decode() if newest else "0-0"
        reply = await self._redis.xread({redis_keys.PREFETCH_HINTS: self._last_id}, count=_BATCH_MAX, block=_BLOCK_MS)
        for entry_id, fields in _entries(reply):
            self._last_id = entry_id.decode()
            try:
                hint = _hint.decode(fields[b"hint"])
            except (msgspec.MsgspecError, KeyError) as error:
                _log.warning("invalid prefetch hint", error=repr(error))
                continue
            if hint.base_model == self._settings.base_model:
                await self._consider(hint)

    async def _consider(self, hint: PrefetchHint) -> None:
        table = self._residency()
        resident = (
            frozenset() if table is None else table.in_memory | {name for name in table.slots if name is not None}
        )
        live = await self._replicas.live()
        if should_prefetch(
            hint.engine_name, hint.rank_class, me=self._settings.replica_id, live=live, resident=resident
        ):
            self._prefetcher.enqueue(hint.engine_name, hint.reason, tenant=hint.tenant_id or None)
        else:
            metrics.PREFETCHES_SKIPPED.labels("elsewhere").inc()


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:  # redis-py answers in two shapes, by RESP version
    """The entries of the single stream that was read."""
    found: list[Any] = []
    for entries in reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or ()]:
        nested = entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list | tuple)
        found += [entry for batch in entries for entry in batch] if nested else entries
    return found
