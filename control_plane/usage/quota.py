"""Reads a tenant's quota from the gateways' state in Redis. Gateways decide by it; this module only shows it.

Fails closed: without Redis the call raises instead of returning zeros.
"""

from collections.abc import Sequence
from typing import Final, cast

from redis import Redis

from control_plane.usage.schemas import QuotaHeld, QuotaUsed, QuotaView
from core import redis_keys
from core.contracts.grants import Limits
from core.quota_state import FIELDS, HELD_FIELDS, LevelState, read_level, without_expired

EXPIRED_MAX: Final = 1000  # expired leases that no gateway has swept yet; gateways sweep within seconds


def read(redis: Redis, tenant_id: str, *, limits: Limits, adapters: int) -> QuotaView:
    """The quota now, by Redis's clock, which the gateways' scripts use too."""
    seconds, micros = redis.time()
    leases = redis_keys.tenant_leases(tenant_id)
    now_ms = seconds * 1000 + micros // 1000
    expired = cast("list[bytes]", redis.zrange(leases, "-inf", now_ms, byscore=True, offset=0, num=EXPIRED_MAX))
    with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(redis_keys.tenant_quota(tenant_id), list(FIELDS))
        for request_id in expired:
            pipe.hmget(redis_keys.reservation(tenant_id, request_id.decode()), list(HELD_FIELDS))
        stored, *held = cast("list[Sequence[bytes | None]]", pipe.execute())
    level = read_level(stored, now_us=seconds * 1_000_000 + micros)
    return view(without_expired(level, held), limits=limits, adapters=adapters)


def view(level: LevelState, *, limits: Limits, adapters: int) -> QuotaView:
    """The response for a tenant's quota state. Pure."""
    by_rate = {
        "requests": limits.requests_per_minute,
        "tokens": limits.tokens_per_minute,
        "input": limits.input_tokens_per_minute,
        "output": limits.output_tokens_per_minute,
    }
    used = {rate: 0 if limit is None else level.used_of(rate, limit) for rate, limit in by_rate.items()}
    return QuotaView(
        limits=limits,
        used=QuotaUsed(
            requests_per_minute=used["requests"],
            tokens_per_minute=used["tokens"],
            input_tokens_per_minute=used["input"],
            output_tokens_per_minute=used["output"],
            tokens_per_month=level.tokens_this_month,
            spend_nanos_per_month=level.spent_this_month_nanos,
            adapters=adapters,
        ),
        held=QuotaHeld(
            concurrent_requests=level.concurrent_requests,
            kv_pages=level.kv_pages,
            tokens=level.tokens_held,
            spend_nanos=level.spend_held_nanos,
        ),
    )
