"""Reads a tenant's quota as gateways keep it in Redis. What is decided by it is decided there; here it is only shown.

Fails closed: without Redis there is no answer rather than zeros.
"""

from datetime import UTC, datetime
from typing import Final, cast

from redis import Redis

from control_plane.usage.schemas import QuotaHeld, QuotaUsed, QuotaView
from core import keys
from core.contracts import Limits

MINUTE_US: Final = 60_000_000
_FIELDS: Final = ["concurrent", "kv_pages", "requests_tat_us", "tokens_tat_us", "month", "month_used", "month_held"]


def read(redis: Redis, tenant_id: str, *, limits: Limits, adapters: int) -> QuotaView:
    """The quota now, by Redis's own clock, which the gateways' scripts go by too."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(keys.tenant_quota(tenant_id), _FIELDS)
        pipe.time()
        stored, (seconds, micros) = cast("tuple[list[bytes | None], tuple[int, int]]", tuple(pipe.execute()))
    return view(
        dict(zip(_FIELDS, stored, strict=True)), now_us=seconds * 1_000_000 + micros, limits=limits, adapters=adapters
    )


def view(fields: dict[str, bytes | None], *, now_us: int, limits: Limits, adapters: int) -> QuotaView:
    """The hash's fields as a view. Pure. A month that is over has used nothing of the present one."""
    number = {name: int(float(fields[name] or 0)) for name in _FIELDS if name != "month"}
    month = datetime.fromtimestamp(now_us / 1_000_000, UTC).strftime("%Y-%m")
    same_month = (fields["month"] or b"").decode() == month
    return QuotaView(
        limits=limits,
        used=QuotaUsed(
            requests_per_minute=_in_bucket(number["requests_tat_us"], now_us, limits.requests_per_minute),
            tokens_per_minute=_in_bucket(number["tokens_tat_us"], now_us, limits.tokens_per_minute),
            tokens_per_month=number["month_used"] if same_month else 0,
            adapters=adapters,
        ),
        held=QuotaHeld(
            concurrent_requests=number["concurrent"], kv_pages=number["kv_pages"], tokens=number["month_held"]
        ),
    )


def _in_bucket(arrival_us: int, now_us: int, limit: int) -> int:
    """How much of a GCRA bucket that holds ``limit`` a minute is taken, given its theoretical arrival time."""
    ahead_us = min(max(0, arrival_us - now_us), MINUTE_US)
    return -(-ahead_us * limit // MINUTE_US)
