"""Where a replica's prefetching gets its ideas: hints of flips and listings from Redis, and its own forecast from when
adapters were used. Whether it is this replica that should act is decided here; the acting is ``prefetch``'s.
"""

import time
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
from data_plane.engine.agent.pool import ReplicaPool, in_pool_of
from data_plane.engine.agent.prefetch import Prefetcher
from data_plane.engine.agent.usage_forecast import UsageHistory
from data_plane.engine.residency import EngineResidency
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_BLOCK_MS = 2000
_BATCH_MAX = 100
_OVERLAP_MS = 10_000  # gateways' clocks differ, and each writes a second's uses at once; noting twice changes nothing
_hint = msgspec.json.Decoder(PrefetchHint)


def is_mine(name: str, rank_class: int, *, me: str, live: list[ReplicaStatus], held: frozenset[str]) -> bool:
    """Whether this replica should bring an adapter ahead: another revision of it is among ``held``, the names in its
    slots and host memory, so that its requests come here; or it is the one that all of its pool agree on.
    """
    mine = next((replica for replica in live if replica.id == me), None)
    if mine is None or mine.rank_max < rank_class:
        return False
    adapter = adapter_of(name) + "@"
    if any(other.startswith(adapter) and other != name for other in held):
        return True
    pool = [replica.id for replica in live if in_pool_of(rank_class, replica, live)]
    return rendezvous_hash.winner(name, pool) == me


class PrefetchHints:
    """Two steps to be repeated: ``follow`` the stream, and ``forecast``."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        pool: ReplicaPool,
        prefetcher: Prefetcher,
        uses: UsageHistory,
        *,
        residency: Callable[[], EngineResidency | None],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._pool = pool
        self._prefetcher = prefetcher
        self._uses = uses
        self._residency = residency
        self._last_id: str | None = None
        self._heat_read_ms = 0

    async def follow(self) -> None:
        """Wait a moment for hints and act on them; those from before this agent are no news. Raises RedisError."""
        if self._last_id is None:
            newest = cast("list[tuple[bytes, object]]", await self._redis.xrevrange(redis_keys.PREFETCH_HINTS, count=1))
            self._last_id = newest[0][0].decode() if newest else "0-0"
        reply = await self._redis.xread({redis_keys.PREFETCH_HINTS: self._last_id}, count=_BATCH_MAX, block=_BLOCK_MS)
        for entry_id, fields in _entries(reply):
            self._last_id = entry_id.decode()
            try:
                hint = _hint.decode(fields[b"hint"])
            except (msgspec.MsgspecError, KeyError) as error:
                _log.warning("a prefetch hint cannot be read", error=repr(error))
                continue
            if hint.base_model == self._settings.base_model:
                await self._consider(hint)

    async def forecast(self) -> None:
        """Learn what was used since the last time, and prefetch what is due and not in memory. Raises RedisError."""
        rank_class = self._settings.engine_rank_max
        key = redis_keys.adapter_heat(self._settings.base_model, rank_class)
        used = await self._redis.zrangebyscore(
            key,
            self._heat_read_ms - _OVERLAP_MS,
            "+inf",
            withscores=True,
            start=0,
            num=self._settings.forecast_adapters_max,
        )
        for name, at_ms in cast("list[tuple[bytes, float]]", used):
            self._uses.note(name.decode(), at_ms / 1000)
            self._heat_read_ms = max(self._heat_read_ms, int(at_ms))
        table = self._residency()
        if table is None:
            return
        room = self._settings.prefetch_queue_max
        for due in self._uses.due(time.time(), horizon_s=self._settings.forecast_horizon_s)[:room]:
            if due.name not in table.in_memory and due.name not in table.slots:
                await self._consider(
                    PrefetchHint(
                        engine_name=due.name,
                        tenant_id="",
                        base_model=self._settings.base_model,
                        rank_class=rank_class,
                        reason="forecast",
                    )
                )

    async def _consider(self, hint: PrefetchHint) -> None:
        table = self._residency()
        held = frozenset() if table is None else table.in_memory | {name for name in table.slots if name is not None}
        live = await self._pool.live()
        if is_mine(hint.engine_name, hint.rank_class, me=self._settings.replica_id, live=live, held=held):
            self._prefetcher.ask(hint.engine_name, hint.reason, tenant=hint.tenant_id or None)
        else:
            metrics.PREFETCHES_SKIPPED.labels("elsewhere").inc()


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:  # redis-py answers in two shapes, by RESP version
    """The entries of the one stream that was read."""
    found: list[Any] = []
    for entries in reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or ()]:
        nested = entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list | tuple)
        found += [entry for batch in entries for entry in batch] if nested else entries
    return found
