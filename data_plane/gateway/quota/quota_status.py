"""``GET /v1/quota``: the limits of the caller's key and tenant, their usage and holds, and when each limit resets.

Fails closed: without Redis it answers an error, never zeros. It changes nothing; reservations are in ``reservation``.
"""

import asyncio
from typing import Any, Final

import msgspec
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.grants import KeyLimits, Limits
from core.errors import Unavailable
from core.quota_state import FIELDS, HELD_FIELDS, LevelState, month_ends_ms, read_level, whole_seconds, without_expired
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_connection import RedisConnection

_EXPIRED_MAX: Final = 1000  # expired leases that were not swept yet; gateways sweep within seconds
_RATES = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "input_tokens_per_minute": "input",
    "output_tokens_per_minute": "output",
    "gpu_seconds_per_minute": "gpu",
}


class QuotaReader:
    """Reads the levels of one caller. Holds of expired leases are subtracted."""

    def __init__(self, redis: RedisConnection, *, deadline_s: float) -> None:
        self._redis = redis
        self._deadline_s = deadline_s

    async def read(self, caller: Caller) -> dict[str, Any]:
        """``{"object": "quota", "tenant": …, "key": …}``; ``key`` is null where the key has no limits. Raises
        Unavailable.
        """
        tenant_id, own = caller.tenant.tenant_id, caller.key.limits
        of_key = redis_keys.key_quota(tenant_id, caller.key.key_id)
        try:
            async with asyncio.timeout(self._deadline_s):
                time = await self._redis.call("TIME")
                now_us = int(time[0]) * 1_000_000 + int(time[1])
                expired = await self._redis.call(
                    "ZRANGE", redis_keys.tenant_leases(tenant_id), "-inf", now_us // 1000, "BYSCORE",
                    "LIMIT", 0, _EXPIRED_MAX,
                )  # fmt: skip
                tenant, key, *held = await asyncio.gather(
                    self._redis.call("HMGET", redis_keys.tenant_quota(tenant_id), *FIELDS),
                    self._redis.call("HMGET", of_key, *FIELDS),
                    *(
                        self._redis.call(
                            "HMGET", redis_keys.reservation(tenant_id, each.decode()), *HELD_FIELDS, "levels"
                        )
                        for each in expired
                    ),
                )
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise Unavailable(
                "Quotas are unavailable: Redis did not answer in time. Retry shortly.",
                code="quota_unavailable",
                retry_after_s=1,
            ) from error
        of_tenant = without_expired(read_level(tenant, now_us=now_us), [fields for *fields, _ in held])
        by_key = [fields for *fields, levels in held if of_key.encode() in (levels or b"").split()]
        level = without_expired(read_level(key, now_us=now_us), by_key)
        return {
            "object": "quota",
            "tenant": shown(of_tenant, caller.tenant.limits, now_us=now_us),
            "key": None if own is None else shown(level, own, now_us=now_us),
        }


def shown(level: LevelState, limits: Limits | KeyLimits, *, now_us: int) -> dict[str, Any]:
    """One level as the API shows it: ``limits`` (null is no limit), ``used``, ``held``, and ``resets_ms``, the time
    until each limit is full again. Pure.
    """
    all_limits = msgspec.structs.asdict(limits)
    month_ms = month_ends_ms(now_us) - now_us // 1000
    rates = {name: rate for name, rate in _RATES.items() if all_limits.get(name) is not None}
    return {
        "limits": all_limits,
        "used": {
            **{name: level.used_of(rate, all_limits[name]) for name, rate in rates.items()},
            "tokens_per_month": level.tokens_this_month,
            "spend_nanos_per_month": level.spent_this_month_nanos,
            "gpu_seconds_per_month": whole_seconds(level.gpu_this_month_us),
        },
        "held": {
            "concurrent_requests": level.concurrent_requests,
            "kv_pages": level.kv_pages,
            "tokens": level.tokens_held,
            "spend_nanos": level.spend_held_nanos,
            "gpu_seconds": whole_seconds(level.gpu_held_us),
        },
        "resets_ms": {
            **{name: level.resets_ms(rate) for name, rate in rates.items()},
            "tokens_per_month": month_ms,
            "spend_nanos_per_month": month_ms,
            "gpu_seconds_per_month": month_ms,
        },
    }
