"""The limits of a caller, in the form that reserve.lua takes: a level each for platform, tenant and key, and the
highest costs of a request. Pure; the usage of a level is in Redis only.
"""

from typing import Literal

import msgspec

from core import clock, redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, Prices, SpendLimitGrant, TenantGrant
from core.contracts.routes import UNMEASURED, GpuTime
from core.spend_windows import window_at

NO_LIMIT = -1
_KEPT_AFTER_WINDOW_S = 172_800  # longer than any request runs, so that it settles into the window that admitted it
_NANOS_MAX = (1 << 53) - 1  # the largest integer that a Lua number represents exactly


LevelName = Literal[
    "platform", "tenant", "key", "tenant_day", "tenant_month", "key_day", "key_month", "adapter_day", "adapter_month"
]

_WINDOW_LEVELS: dict[tuple[str, str], LevelName] = {
    ("tenant", "day"): "tenant_day",
    ("tenant", "month"): "tenant_month",
    ("key", "day"): "key_day",
    ("key", "month"): "key_month",
    ("adapter", "day"): "adapter_day",
    ("adapter", "month"): "adapter_month",
}


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One hash in Redis (``quota`` is its key) and its limits; ``NO_LIMIT`` means none. ``spend_ceiling_nanos`` limits
    the total spending, which is at least ``charged_nanos``; ``month_nanos`` limits the spending of this month. The hash
    is kept for ``keep_s``; ``NO_LIMIT`` keeps it.
    """

    name: LevelName
    quota: str
    requests_per_minute: int = NO_LIMIT
    tokens_per_minute: int = NO_LIMIT
    input_tokens_per_minute: int = NO_LIMIT
    output_tokens_per_minute: int = NO_LIMIT
    gpu_us_per_minute: int = NO_LIMIT
    concurrent_requests: int = NO_LIMIT
    kv_pages: int = NO_LIMIT
    tokens_per_month: int = NO_LIMIT
    spend_ceiling_nanos: int = NO_LIMIT
    charged_nanos: int = 0
    month_nanos: int = NO_LIMIT
    gpu_us_per_month: int = NO_LIMIT
    keep_s: int = NO_LIMIT

    @property
    def arguments(self) -> tuple[int, ...]:
        """The limits, in the order that reserve.lua takes."""
        return (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
            self.gpu_us_per_minute,
            self.concurrent_requests,
            self.kv_pages,
            self.tokens_per_month,
            self.spend_ceiling_nanos,
            self.charged_nanos,
            self.month_nanos,
            self.gpu_us_per_month,
            self.keep_s,
        )


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The highest cost of a token of each kind and of a KV page held for the longest request, in nanodollars, and the
    GPU time of a token of each kind.
    """

    input_nanos: int = 0
    output_nanos: int = 0
    page_nanos: int = 0
    input_gpu_us: int = 0
    output_gpu_us: int = 0


class PlatformLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on all tenants together. Limits a month and on spending exist for tenants and keys only."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    kv_pages: int | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of an admitted request: at its levels (the keys of their hashes), and KV pages on its replica."""

    tenant_id: str
    levels: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    pages: int
    nanos: int
    gpu_us: int


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """The levels of a caller, from the widest to the narrowest, and the costs of a request."""

    tenant_id: str
    levels: tuple[Level, ...]
    costs: Costs = Costs()

    def taken(self, *, input_tokens: int, output_tokens: int, pages: int) -> Taken:
        """The holds of a request of this size, computed as in reserve.lua."""
        costs = self.costs
        nanos = input_tokens * costs.input_nanos + output_tokens * costs.output_nanos + pages * costs.page_nanos
        return Taken(
            tenant_id=self.tenant_id,
            levels=tuple([level.quota for level in self.levels]),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            pages=pages,
            nanos=min(nanos, _NANOS_MAX),
            gpu_us=input_tokens * costs.input_gpu_us + output_tokens * costs.output_gpu_us,
        )


def allowance(
    tenant: TenantGrant,
    key: KeyGrant,
    platform: PlatformLimits,
    *,
    prices: Prices | None,
    longest_ms: int,
    gpu_time: GpuTime = UNMEASURED,
    adapter_id: str | None = None,
    now_ms: int = 0,
) -> Allowance:
    """The limits of a tenant's key, at the prices of a request's model. A request holds its KV pages for
    ``longest_ms`` at most. The platform, the key and the spending limits of a day or month, which is the one of
    ``now_ms``, are levels only where they have limits.
    """
    levels = [_tenant(tenant)]
    if platform != PlatformLimits():
        levels.insert(0, _platform(platform))
    if key.limits is not None and key.limits != KeyLimits():
        levels.append(_key(key, key.limits))
    if tenant.spend_limits:
        subjects = {"tenant": "", "key": key.key_id, "adapter": adapter_id}
        own = (limit for limit in tenant.spend_limits if limit.subject_id == subjects[limit.scope])
        levels += [_window(tenant, limit, now_ms) for limit in own]
    costs = Costs(input_gpu_us=gpu_time.input_token_us, output_gpu_us=gpu_time.output_token_us)
    if prices is not None:
        costs = msgspec.structs.replace(
            costs,
            input_nanos=max(prices.input_nanos, prices.cached_input_nanos),
            output_nanos=prices.output_nanos,
            page_nanos=-(-prices.kv_page_second_nanos * longest_ms // 1000),
        )
    return Allowance(tenant_id=tenant.tenant_id, levels=tuple(levels), costs=costs)


def one_request(tenant: TenantGrant, key: KeyGrant) -> Allowance:
    """An allowance that counts one request a minute and nothing else, for answers that use no engine."""
    limit = tenant.limits.requests_per_minute
    levels = [Level(name="tenant", quota=redis_keys.tenant_quota(tenant.tenant_id), requests_per_minute=limit)]
    if key.limits is not None and (limit_of_key := key.limits.requests_per_minute) is not None:
        quota = redis_keys.key_quota(key.tenant_id, key.key_id)
        levels.append(Level(name="key", quota=quota, requests_per_minute=limit_of_key))
    return Allowance(tenant_id=tenant.tenant_id, levels=tuple(levels))


def _platform(limits: PlatformLimits) -> Level:
    return Level(
        name="platform",
        quota=redis_keys.PLATFORM_QUOTA,
        requests_per_minute=_or_none(limits.requests_per_minute),
        tokens_per_minute=_or_none(limits.tokens_per_minute),
        input_tokens_per_minute=_or_none(limits.input_tokens_per_minute),
        output_tokens_per_minute=_or_none(limits.output_tokens_per_minute),
        concurrent_requests=_or_none(limits.concurrent_requests),
        kv_pages=_or_none(limits.kv_pages),
    )


def _tenant(tenant: TenantGrant) -> Level:
    limits = tenant.limits
    return Level(
        name="tenant",
        quota=redis_keys.tenant_quota(tenant.tenant_id),
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        input_tokens_per_minute=_or_none(limits.input_tokens_per_minute),
        output_tokens_per_minute=_or_none(limits.output_tokens_per_minute),
        gpu_us_per_minute=_microseconds(limits.gpu_seconds_per_minute),
        concurrent_requests=limits.concurrent_requests,
        kv_pages=limits.kv_pages,
        tokens_per_month=limits.tokens_per_month,
        spend_ceiling_nanos=_or_none(tenant.spend_ceiling_nanos),
        charged_nanos=tenant.charged_nanos,
        gpu_us_per_month=_microseconds(limits.gpu_seconds_per_month),
    )


def _key(key: KeyGrant, limits: KeyLimits) -> Level:
    return Level(
        name="key",
        quota=redis_keys.key_quota(key.tenant_id, key.key_id),
        requests_per_minute=_or_none(limits.requests_per_minute),
        tokens_per_minute=_or_none(limits.tokens_per_minute),
        input_tokens_per_minute=_or_none(limits.input_tokens_per_minute),
        output_tokens_per_minute=_or_none(limits.output_tokens_per_minute),
        concurrent_requests=_or_none(limits.concurrent_requests),
        kv_pages=_or_none(limits.kv_pages),
        tokens_per_month=_or_none(limits.tokens_per_month),
        month_nanos=_or_none(limits.spend_nanos_per_month),
    )


def _window(tenant: TenantGrant, limit: SpendLimitGrant, now_ms: int) -> Level:
    """The spending of the window that holds ``now_ms``, which a hash of its own counts."""
    start, end = window_at(tenant.zone, limit.window, clock.from_ms(now_ms))
    start_ms = clock.to_ms(start)
    return Level(
        name=_WINDOW_LEVELS[limit.scope, limit.window],
        quota=redis_keys.spend_window_quota(tenant.tenant_id, limit.scope, limit.subject_id, limit.window, start_ms),
        spend_ceiling_nanos=limit.amount_nanos,
        charged_nanos=limit.spent_nanos if limit.window_start_ms == start_ms else 0,
        keep_s=(clock.to_ms(end) - now_ms) // 1000 + _KEPT_AFTER_WINDOW_S,
    )


def _microseconds(limit_s: int | None) -> int:
    return NO_LIMIT if limit_s is None else limit_s * 1_000_000


def _or_none(limit: int | None) -> int:
    return NO_LIMIT if limit is None else limit
