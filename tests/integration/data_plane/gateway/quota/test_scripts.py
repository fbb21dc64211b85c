"""The quota scripts on a real server: races, rates, refunds, and partial grants of max_tokens."""

import asyncio
import random
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from data_plane.gateway.quota.allowance import PlatformLimits
from data_plane.gateway.quota.lua_script import Script
from data_plane.gateway.quota.rate_limit_response import quota_exceeded
from data_plane.gateway.quota.reservation import QuotasForgotten
from tests.fixtures.quota.levels import ask, connected, granted, reserve, scripts, settle, stored

PRICES = Prices(input_nanos=100, cached_input_nanos=10, output_nanos=400, kv_page_second_nanos=50)


async def test_many_gateways_near_a_limit_admit_exactly_what_fits(redis_settings):
    """Twelve connections race with random settlements between them; no limit is ever exceeded."""
    async with Redis.from_url(redis_settings.redis_url) as redis:
        choice = random.Random(7)
        allowed = granted(
            concurrent_requests=20, kv_pages=50, tokens_per_month=5000, ceiling=1_000_000, prices=PRICES,
            key=KeyLimits(concurrent_requests=15),
        )  # fmt: skip
        tenant, key = (level.quota for level in allowed.levels)
        finished = asyncio.Event()

        async def gateway(seed: int) -> int:
            dice, spent = random.Random(seed), 0
            async with connected(redis_settings.redis_url) as (_, mine):
                quota = scripts(mine)
                for _ in range(60):
                    wanted = ask(dice.randint(1, 60))
                    if (await reserve(quota, wanted, allowed)).blocked_by:
                        continue
                    await asyncio.sleep(dice.random() / 500)
                    amount = dice.randint(1, wanted.max_tokens)
                    results = await asyncio.gather(
                        *(settle(quota, wanted, allowed, output_tokens=amount, cost_nanos=400 * amount) for _ in "12")
                    )
                    assert sorted(results) == [False, True]
                    spent += amount
            return spent

        async def watch() -> None:
            while not finished.is_set():
                found = await stored(redis, tenant)
                own = await stored(redis, key)
                assert 0 <= found.get("concurrent", 0) <= 15 >= own.get("concurrent", 0) >= 0
                assert 0 <= found.get("kv_pages", 0) <= 50
                assert found.get("month_used", 0) + found.get("month_held", 0) <= 5000
                assert found.get("spent_nanos", 0) + found.get("spend_held_nanos", 0) <= 1_000_000
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        used = sum(await asyncio.gather(*(gateway(choice.randint(0, 1 << 30)) for _ in range(12))))
        assert not watcher.done()
        finished.set()
        await watcher
        for quota in (tenant, key):
            found = await stored(redis, quota)
            assert (found["month_used"], found["spent_nanos"], found["month_held"]) == (used, 400 * used, 0)


@pytest.mark.parametrize(
    ("name", "limit", "cost"),
    [
        ("requests_per_minute", 60, 1),
        ("requests_per_minute", 7, 1),
        ("tokens_per_minute", 100_000, 977),
        ("output_tokens_per_minute", 5000, 50),
    ],
)
async def test_rate_limits_admit_a_burst_of_the_limit_and_nothing_above(quotas, name, limit, cost):
    _, quota = quotas
    allowed, taken = granted(**{name: limit}), 0
    while not (verdict := await reserve(quota, ask(cost), allowed)).blocked_by:
        taken += cost
    assert verdict.blocked_by == name
    assert limit - cost < taken <= limit + limit // 60 + cost  # at most a second of refill has arrived meanwhile
    assert 0 < verdict.wait_us <= 60_000_000 * cost // limit + 1


async def test_input_and_output_tokens_have_separate_minute_limits(quotas):
    _, quota = quotas
    allowed = granted(input_tokens_per_minute=100, output_tokens_per_minute=50)
    assert (await reserve(quota, ask(60, prompts=[10]), allowed)).blocked_by == "output_tokens_per_minute"
    assert (await reserve(quota, ask(10, prompts=[101]), allowed)).wait_us == -1
    assert not (await reserve(quota, ask(50, prompts=[90]), allowed)).blocked_by
    refused = await reserve(quota, ask(0, prompts=[20]), allowed)
    assert (refused.blocked_by, refused.level) == ("input_tokens_per_minute", "tenant")


@pytest.mark.parametrize("level", ["platform", "key"])
async def test_each_level_has_its_own_limits(quotas, level):
    redis, quota = quotas
    limits = {"platform": PlatformLimits(concurrent_requests=1)} if level == "platform" else {}
    limits |= {"key": KeyLimits(concurrent_requests=1)} if level == "key" else {}
    first, second = (granted("tn_one", key_id=key_id, **limits) for key_id in ("key_1", "key_2"))
    wanted = ask(5)
    assert not (await reserve(quota, wanted, first)).blocked_by
    refused = await reserve(quota, ask(5), first)
    assert (refused.blocked_by, refused.level) == ("concurrent_requests", level)
    assert bool((await reserve(quota, ask(5), second)).blocked_by) == (level == "platform")
    assert await settle(quota, wanted, first, output_tokens=3)
    assert not (await reserve(quota, ask(5), first)).blocked_by
    assert (await stored(redis, first.levels[0].quota))["month_used"] == 3


@pytest.mark.parametrize(("prompt", "never"), [(101, True), (60, False)])
async def test_a_prompt_above_a_limit_leaves_room_for_no_completion(quotas, prompt, never):
    _, quota = quotas
    allowed = granted(input_tokens_per_minute=100)
    assert not (await reserve(quota, ask(5, prompts=[50]), allowed)).blocked_by
    refused = await reserve(quota, ask(200, prompts=[prompt]), allowed)
    assert (refused.blocked_by, refused.fits, refused.wait_us == -1) == ("input_tokens_per_minute", 0, never)
    assert "Lower max_tokens to" not in quota_exceeded(refused, tokens=prompt + 200).message


async def test_unused_tokens_are_returned_to_the_minutes_bucket(quotas):
    _, quota = quotas
    allowed = granted(tokens_per_minute=1000)
    wanted = ask(900)
    assert (await reserve(quota, wanted, allowed)).tokens_remaining <= 110
    await settle(quota, wanted, allowed, output_tokens=100)
    assert 899 <= (await reserve(quota, ask(0), allowed)).tokens_remaining <= 1000


async def test_a_late_refund_returns_only_tokens_that_have_not_been_refilled(quotas):
    """A reserves a minute's worth. A minute later the bucket is full again and B takes it. Then A settles unused."""
    redis, quota = quotas
    allowed, first = granted(tokens_per_minute=60), ask(60)
    assert not (await reserve(quota, first, allowed)).blocked_by
    for key, field in (
        (allowed.levels[0].quota, "tokens_tat_us"),
        (redis_keys.reservation(allowed.tenant_id, first.request_id), "1:tokens_end_us"),
    ):
        await redis.hincrby(key, field, -60_000_000)  # as if a minute had passed
    assert not (await reserve(quota, ask(60), allowed)).blocked_by
    await settle(quota, first, allowed)
    assert (await reserve(quota, ask(60), allowed)).blocked_by == "tokens_per_minute"


@pytest.mark.parametrize(
    ("limits", "blocked_by", "fits"),
    [
        ({"tokens_per_month": 150}, "tokens_per_month", 140),
        ({"tokens_per_minute": 150}, "tokens_per_minute", 140),
        ({"output_tokens_per_minute": 99}, "output_tokens_per_minute", 99),
        ({"kv_pages": 4}, "kv_pages", 54),
        # 10 * 100 + 54 * 400 + 4 pages * 50 fit; the 55th token would take a fifth page
        ({"ceiling": 22_849, "prices": PRICES}, "spend", 54),
        ({"key": KeyLimits(spend_nanos_per_month=22_850), "prices": PRICES}, "spend", 54),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
async def test_a_request_without_max_tokens_gets_the_rest_and_one_with_it_is_refused(quotas, limits, blocked_by, fits):
    _, quota = quotas
    allowed = granted(**limits)
    refused = await reserve(quota, ask(200, prompts=[10]), allowed)
    assert (refused.blocked_by, refused.fits) == (blocked_by, fits)
    given = await reserve(quota, ask(200, prompts=[10], least=16), allowed)
    assert (given.blocked_by, given.max_tokens) == ("", fits)
    left = await reserve(quota, ask(200, prompts=[10], least=16), allowed)
    assert (left.blocked_by, left.max_tokens) == (blocked_by, 0)
    assert left.fits < 16


async def test_spending_lost_by_redis_counts_as_already_charged(quotas):
    redis, quota = quotas
    allowed = granted(prices=PRICES, charged=9_000, ceiling=10_000)
    refused = await reserve(quota, ask(10), allowed)
    assert (refused.blocked_by, refused.remaining) == ("spend", 1_000)
    wanted = ask(1)
    assert not (await reserve(quota, wanted, allowed)).blocked_by
    await settle(quota, wanted, allowed, output_tokens=1, cost_nanos=450)
    assert (await stored(redis, allowed.levels[0].quota))["spent_nanos"] == 9_450


async def test_lost_usage_blocks_tenants_limited_by_it_until_it_is_restored(quotas):
    redis, quota = quotas
    await redis.delete(redis_keys.QUOTAS_REBUILT)
    limited, free = granted(), granted(tokens_per_month=-1)
    with pytest.raises(QuotasForgotten):
        await reserve(quota, ask(1), limited)
    assert not (await reserve(quota, ask(1), free)).blocked_by
    await redis.set(redis_keys.QUOTAS_REBUILT, 1)
    assert not (await reserve(quota, ask(1), limited)).blocked_by


async def test_a_reservation_after_its_own_settlement_takes_nothing(quotas):
    redis, quota = quotas
    allowed, wanted = granted(), ask(5)
    assert await settle(quota, wanted, allowed)
    assert (await reserve(quota, wanted, allowed)).blocked_by == "ended", "nothing was billed"
    assert await stored(redis, allowed.levels[0].quota) == {}


async def test_requests_that_settle_after_a_month_ended_are_all_counted_in_the_new_one(quotas):
    redis, quota = quotas
    allowed, asks = granted(), [ask(9) for _ in range(20)]
    for wanted in asks:
        assert not (await reserve(quota, wanted, allowed)).blocked_by
    level = allowed.levels[0].quota
    await redis.hset(level, mapping={"month": "2001-01", "month_used": 10**9})
    await asyncio.gather(*(settle(quota, wanted, allowed, output_tokens=9) for wanted in asks))
    assert (await stored(redis, level))["month_used"] == 9 * len(asks)


async def test_the_month_is_the_servers_in_utc(redis):
    """The calendar arithmetic in Lua agrees with Python's, for two days of every month over 60 years."""
    source = Script("settle").source.split("-- End a reservation once")[0]
    days = [datetime(y, m, d, 23, 59, 59, tzinfo=UTC) for y in range(2024, 2084) for m in range(1, 13) for d in (1, 28)]
    every = "local found = {} for i, at in ipairs(ARGV) do found[i] = month_of(tonumber(at)) end return found"
    found = redis.eval(source + every, 0, *(int(day.timestamp()) for day in days))
    assert [month.decode() for month in found] == [f"{day:%Y-%m}" for day in days]
