"""Hard limits of a day or month, for a tenant, a key and an adapter, in the reservation of each request."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from core import clock, redis_keys
from core.contracts.grants import KeyGrant, Prices, SpendLimitGrant, TenantGrant
from core.money import NANOS_PER_DOLLAR
from data_plane.gateway.quota.allowance import Allowance, PlatformLimits, allowance
from data_plane.gateway.quota.rate_limit_response import quota_exceeded
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.quota.levels import ask, connected, reserve, scripts, settle

CENT = NANOS_PER_DOLLAR // 100
PRICES = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=CENT, kv_page_second_nanos=0)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def limit(scope: str, window: str, cents: int, subject_id: str = "", **more) -> SpendLimitGrant:
    return SpendLimitGrant(scope=scope, subject_id=subject_id, window=window, amount_nanos=cents * CENT, **more)


def allowed(
    *limits: SpendLimitGrant, now: datetime = NOON, key_id: str = "key_1", adapter_id: str | None = None,
    zone: str = "UTC", ceiling_cents: int | None = None,
) -> Allowance:  # fmt: skip
    tenant = TenantGrant(
        tenant_id="tn_one", status="active", limits=AMPLE, spend_limits=limits, zone=zone,
        spend_ceiling_nanos=None if ceiling_cents is None else ceiling_cents * CENT,
    )  # fmt: skip
    key = KeyGrant(key_id=key_id, tenant_id="tn_one", scopes=("inference",))
    return allowance(
        tenant, key, PlatformLimits(), prices=PRICES, longest_ms=1000, adapter_id=adapter_id, now_ms=clock.to_ms(now)
    )


async def spend(quota, allowance_: Allowance, cents: int) -> str:
    """Spend so many cents; returns the limit that refused, or ''."""
    wanted = ask(cents)
    result = await reserve(quota, wanted, allowance_)
    if not result.blocked_by:
        await settle(quota, wanted, allowance_, output_tokens=cents, cost_nanos=cents * CENT)
    return f"{result.level} {result.blocked_by}".strip()


@pytest.mark.scenario(92)
async def test_an_adapter_stops_at_its_limit_and_the_others_go_on_to_the_tenants(redis_settings):
    limits = (limit("adapter", "day", 200, "ad_1"), limit("tenant", "day", 1000))
    async with connected(redis_settings.redis_url) as (_, line):
        quota = scripts(line)
        first, other = allowed(*limits, adapter_id="ad_1"), allowed(*limits, adapter_id="ad_2")
        assert await spend(quota, first, 150) == ""
        assert await spend(quota, first, 51) == "adapter_day spend"
        assert await spend(quota, first, 50) == ""
        assert await spend(quota, first, 1) == "adapter_day spend"
        assert await spend(quota, other, 800) == ""
        assert await spend(quota, other, 1) == "tenant_day spend"
        assert await spend(quota, allowed(*limits), 1) == "tenant_day spend"


@pytest.mark.scenario(93)
async def test_a_key_with_a_daily_limit_begins_again_at_its_tenants_midnight(redis_settings):
    limits = (limit("key", "day", 100, "key_1"),)
    async with connected(redis_settings.redis_url) as (_, line):
        quota = scripts(line)
        before = allowed(*limits, zone="Asia/Tokyo", now=NOON.replace(hour=14, minute=59))
        assert await spend(quota, before, 100) == ""
        assert await spend(quota, before, 1) == "key_day spend"
        assert await spend(quota, allowed(*limits, zone="Asia/Tokyo", now=NOON.replace(hour=15)), 100) == ""
        assert await spend(quota, allowed(*limits, zone="Asia/Tokyo", key_id="key_2", now=NOON), 500) == ""


async def test_concurrent_requests_never_pass_a_limit_and_give_back_what_they_do_not_use(redis_settings):
    async with connected(redis_settings.redis_url) as (_, line):
        quota, own = scripts(line), allowed(limit("key", "month", 500, "key_1"))
        asked = [ask(10) for _ in range(200)]
        results = await asyncio.gather(*(reserve(quota, each, own) for each in asked))
        admitted = [each for each, result in zip(asked, results, strict=True) if not result.blocked_by]
        assert len(admitted) == 50
        for each in admitted:
            await settle(quota, each, own, output_tokens=4, cost_nanos=4 * CENT)
        assert await spend(quota, own, 300) == ""
        assert await spend(quota, own, 1) == "key_month spend"


@pytest.mark.scenario(98)
async def test_a_limit_below_what_is_spent_refuses_at_once_and_running_requests_finish(redis_settings):
    async with connected(redis_settings.redis_url) as (_, line):
        quota, wide = scripts(line), allowed(limit("tenant", "day", 1000))
        assert await spend(quota, wide, 300) == ""
        running = ask(50)
        assert not (await reserve(quota, running, wide)).blocked_by
        lowered = allowed(limit("tenant", "day", 200))
        assert await spend(quota, lowered, 1) == "tenant_day spend"
        assert await settle(quota, running, wide, output_tokens=50, cost_nanos=50 * CENT)
        assert await spend(quota, lowered, 1) == "tenant_day spend"
        assert await spend(quota, wide, 650) == ""


async def test_what_was_spent_before_the_limit_was_set_counts_in_its_window_only(redis_settings):
    start_ms = clock.to_ms(NOON.replace(hour=0))
    of_today = limit("tenant", "day", 100, window_start_ms=start_ms, spent_nanos=80 * CENT)
    async with connected(redis_settings.redis_url) as (_, line):
        quota = scripts(line)
        assert await spend(quota, allowed(of_today), 21) == "tenant_day spend"
        assert await spend(quota, allowed(of_today), 20) == ""
        assert await spend(quota, allowed(of_today), 1) == "tenant_day spend"
        assert await spend(quota, allowed(of_today, now=NOON + timedelta(days=1)), 100) == ""


async def test_a_windows_hash_expires_after_it_and_the_tenants_stays(redis_settings):
    async with connected(redis_settings.redis_url) as (redis, line):
        own = allowed(limit("key", "day", 1, "key_1"))
        assert await spend(scripts(line), own, 2) == "key_day spend"
        start_ms = clock.to_ms(NOON.replace(hour=0))
        window = redis_keys.spend_window_quota("tn_one", "key", "key_1", "day", start_ms)
        assert [level.quota for level in own.levels] == [redis_keys.tenant_quota("tn_one"), window]
        assert 12 * 3600 < await redis.ttl(window) <= 12 * 3600 + 172_800
        assert await redis.ttl(redis_keys.tenant_quota("tn_one")) == -1


async def test_without_spending_limits_a_request_has_the_same_levels_as_before():
    assert [level.name for level in allowed().levels] == ["tenant"]
    assert [level.name for level in allowed(limit("adapter", "day", 1, "ad_1")).levels] == ["tenant"]


@pytest.mark.scenario(87)
async def test_the_refusal_at_the_end_of_a_balance_says_how_many_tokens_fit(redis_settings):
    async with connected(redis_settings.redis_url) as (_, line):
        quota, prepaid = scripts(line), allowed(ceiling_cents=100)
        prices = msgspec.structs.replace(prepaid.costs, input_nanos=1)
        prepaid = msgspec.structs.replace(prepaid, costs=prices)
        over = await reserve(quota, ask(100, prompts=[1]), prepaid)
        refusal = quota_exceeded(over, tokens=101)
        assert (over.blocked_by, over.fits, refusal.max_tokens_that_fit) == ("spend", 99, 99)
        assert "Lower max_tokens to 99" in refusal.message
        as_many_as_fit = await reserve(quota, ask(100, prompts=[1], least=1), prepaid)
        assert (as_many_as_fit.blocked_by, as_many_as_fit.max_tokens) == ("", 99)
