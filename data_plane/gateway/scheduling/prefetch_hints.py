"""Sends replicas prefetch hints when a key lists its models for the first time in a while: the adapters that the key is
likely to use next.

Fire and forget: a lost hint, or one too many, changes only how fast the next request is.
"""

import asyncio
import time
from collections import OrderedDict

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.routes import AdapterRoute, PrefetchHint
from core.errors import NotFound
from data_plane.gateway import metrics
from data_plane.gateway.api.model_catalog import resolve
from data_plane.gateway.state.snapshot import Tables

_log = structlog.get_logger()


class ListingHints:
    """Sends hints once per key and ``interval_s``. It remembers at most ``keys_max`` keys, and sends the hints of at
    most ``sending_max`` lists at the same time.
    """

    def __init__(self, redis: Redis, *, interval_s: float, keys_max: int, adapters_max: int, sending_max: int) -> None:
        self._redis = redis
        self._interval_s = interval_s
        self._keys_max = keys_max
        self._adapters_max = adapters_max
        self._sending_max = sending_max
        self._listed_at: OrderedDict[str, float] = OrderedDict()  # by key id, the longest ago first
        self._sending: set[asyncio.Task[None]] = set()

    def record(self, tables: Tables, tenant_id: str, key_id: str) -> None:
        """Record that a key has listed its models, and send hints in the background. Returns at once."""
        now = time.monotonic()
        is_recent = now - self._listed_at.get(key_id, -self._interval_s) < self._interval_s
        if is_recent or len(self._sending) >= self._sending_max:
            return
        self._listed_at[key_id] = now
        self._listed_at.move_to_end(key_id)
        while len(self._listed_at) > self._keys_max:
            self._listed_at.popitem(last=False)
        if hints := hints_of(tables, tenant_id, adapters_max=self._adapters_max):
            task = asyncio.create_task(self._send(hints))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, hints: list[PrefetchHint]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for hint in hints:
                    pipe.xadd(
                        redis_keys.PREFETCH_HINTS,
                        {"hint": msgspec.json.encode(hint)},
                        maxlen=redis_keys.PREFETCH_HINTS_MAX,
                        approximate=True,
                    )
                await pipe.execute()
            metrics.LISTING_HINTS.inc(len(hints))
        except (RedisError, OSError) as error:
            _log.info("prefetch hints not sent", error=repr(error))


def hints_of(tables: Tables, tenant_id: str, *, adapters_max: int) -> list[PrefetchHint]:
    """Hints for the revisions that serve the tenant's adapter names now, for the ``adapters_max`` newest adapters."""
    routes = sorted(
        tables.adapters.get(tenant_id, {}).values(), key=lambda route: (route.created_at_ms, route.name), reverse=True
    )
    return [hint for route in routes[:adapters_max] if (hint := _hint(tables, tenant_id, route)) is not None]


def _hint(tables: Tables, tenant_id: str, route: AdapterRoute) -> PrefetchHint | None:
    try:
        target = resolve(tables, tenant_id, route.name, draw=route.adapter_id)
    except NotFound:  # its base model is not published
        return None
    if target.adapter is None:
        return None
    return PrefetchHint(
        engine_name=target.engine_name,
        tenant_id=tenant_id,
        base_model=target.base.id,
        rank_class=target.adapter.revision.rank_class,
        reason="listing",
    )
