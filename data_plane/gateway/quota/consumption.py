"""The usage of a request as quotas count it: tokens and cost. Pure.

Rating for bills is in ``core.rating``; the counters are in Redis.
"""

from dataclasses import dataclass
from typing import Final

from core.contracts.grants import TenantGrant
from core.contracts.usage import UsageEvent
from core.rating import rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Tokens that count towards limits a minute and a month, nanodollars, and microseconds of GPU time. Never more than
    the reservation holds.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_nanos: int = 0
    gpu_us: int = 0


NOTHING_USED: Final = Used()


def used_by(event: UsageEvent, tenant: TenantGrant) -> Used:
    """The usage that ``event`` counts as. The cost equals what billing charges for it at the same prices."""
    prices = tenant.prices_of(event.base_model, event.rank_class, event.service_tier)
    cached = 0 if tenant.limits.count_cached_tokens else event.cached_tokens
    return Used(
        input_tokens=event.input_tokens - cached,
        output_tokens=event.output_tokens,
        cost_nanos=0 if prices is None else rate(event, prices).amount_nanos,
        gpu_us=event.gpu_us,
    )


def saved_by_cache(event: UsageEvent, tenant: TenantGrant) -> Used:
    """What one prompt token of the event's model counts less if it came from a prefix cache."""
    prices = tenant.prices_of(event.base_model, event.rank_class, event.service_tier)
    return Used(
        input_tokens=0 if tenant.limits.count_cached_tokens else 1,
        cost_nanos=0 if prices is None else prices.input_nanos - prices.cached_input_nanos,
        gpu_us=event.input_gpu_us,
    )
