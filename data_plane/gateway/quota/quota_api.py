"""``GET /v1/quota``: what the caller's own key and tenant may use, what they use and hold, and when all is free again.

Fails closed: without Redis there is no answer rather than zeros.
"""

import asyncio
from typing import Any

import msgspec
from redis.exceptions import RedisError

from core import keys
from core.contracts import KeyLimits, Limits
from core.errors import Unavailable
from core.quota_state import FIELDS, LevelState, month_ends_ms, read_level
from data_plane.gateway.authenticate import Caller
from data_plane.gateway.quota.reservation import Reservations
from data_plane.gateway.redis_line import RedisLine

_RATES = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "input_tokens_per_minute": "input",
    "output_tokens_per_minute": "output",
}


class QuotaReader:
    """Reads the levels of one caller, after their leases that ran out have been given back."""

    def __init__(self, line: RedisLine, reservations: Reservations, *, deadline_s: float) -> None:
        self._line = line
        self._reservations = reservations
        self._deadline_s = deadline_s

    async def read(self, caller: Caller) -> dict[str, Any]:
        """``{"object": "quota", "tenant": …, "key": …}``; ``key`` is null where it has no limits of its own. Raises
        Unavailable.
        """
        tenant_id, own = caller.tenant.tenant_id, caller.key.limits
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._reservations.sweep(tenant_id)
                time, tenant, key = await asyncio.gather(
                    self._line.call("TIME"),
                    self._line.call("HMGET", keys.tenant_quota(tenant_id), *FIELDS),
                    self._line.call("HMGET", keys.key_quota(tenant_id, caller.key.key_id), *FIELDS),
                )
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise Unavailable(
                "Quotas cannot be read now; try again shortly.", code="quota_unavailable", retry_after_s=1
            ) from error
        now_us = int(time[0]) * 1_000_000 + int(time[1])
        return {
            "object": "quota",
            "tenant": shown(read_level(tenant, now_us=now_us), caller.tenant.limits, now_us=now_us),
            "key": None if own is None else shown(read_level(key, now_us=now_us), own, now_us=now_us),
        }


def shown(level: LevelState, limits: Limits | KeyLimits, *, now_us: int) -> dict[str, Any]:
    """One level: ``limits`` (null is none), ``used`` and ``held`` of them, and ``resets_ms``: how long until each is
    whole again. Pure.
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
        },
        "held": {
            "concurrent_requests": level.concurrent_requests,
            "kv_pages": level.kv_pages,
            "tokens": level.tokens_held,
            "spend_nanos": level.spend_held_nanos,
        },
        "resets_ms": {
            **{name: level.resets_ms(rate) for name, rate in rates.items()},
            "tokens_per_month": month_ms,
            "spend_nanos_per_month": month_ms,
        },
    }
