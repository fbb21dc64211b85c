"""Hints for replicas that an alias was changed, so that they load the adapter before the first request for it.

Fails open: a hint is advice, and a lost one only makes that first request slower.
"""

from collections.abc import Iterable, Sequence

import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.routes import AdapterRoute, PrefetchHint


def hints_for_move(route: AdapterRoute, revision_ids: Iterable[str]) -> tuple[PrefetchHint, ...]:
    """One hint for each of these ready revisions of an adapter."""
    return tuple(
        PrefetchHint(
            engine_name=route.engine_name(revision_id),
            tenant_id=route.tenant_id,
            base_model=route.base_model,
            rank_class=route.revisions[revision_id].rank_class,
            reason="flip",
        )
        for revision_id in revision_ids
        if revision_id in route.revisions
    )


def send_hints(redis: Redis, hints: Sequence[PrefetchHint]) -> None:
    """Send the hints after the change is committed. An unavailable Redis never raises."""
    if not hints:
        return
    try:
        with redis.pipeline(transaction=False) as pipe:
            for hint in hints:
                pipe.xadd(
                    redis_keys.PREFETCH_HINTS,
                    {"hint": msgspec.json.encode(hint)},
                    maxlen=redis_keys.PREFETCH_HINTS_MAX,
                    approximate=True,
                )
            pipe.execute()
    except (RedisError, OSError) as error:
        structlog.get_logger().info("prefetch hints not sent", error=repr(error))
