"""All or nothing: a request that one limit rejects changes no bucket, hold or counter of any level."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.contracts.routes import GpuTime
from data_plane.gateway.quota.allowance import Allowance, Level, PlatformLimits
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.quota.reservation import ReservationRequest, Reservations
from tests.fixtures.examples import examples
from tests.fixtures.quota.levels import BLOCK, ask, connected, granted, scripts, settle, stored
from tests.fixtures.quota.model import Model

PRICES = Prices(input_nanos=3, cached_input_nanos=1, output_nanos=7, kv_page_second_nanos=11)
MINUTE = 100_000
WIDE = {
    "requests_per_minute": 60, "tokens_per_minute": MINUTE, "input_tokens_per_minute": MINUTE,
    "output_tokens_per_minute": MINUTE, "ceiling": 10**12, "prices": PRICES, "gpu_seconds_per_minute": MINUTE,
    "gpu_seconds_per_month": 10**9, "gpu_time": GpuTime(input_token_us=100_000, output_token_us=200_000),
    "platform": PlatformLimits(concurrent_requests=10_000, kv_pages=10**6, tokens_per_minute=MINUTE),
    "key": KeyLimits(
        requests_per_minute=60, tokens_per_minute=MINUTE, concurrent_requests=10_000, tokens_per_month=10**9,
        spend_nanos_per_month=10**12,
    ),
}  # fmt: skip
"""Each level limits what it can: every bucket and hold is in use, and none is in the way."""

RATES = {
    "requests_per_minute": "requests", "tokens_per_minute": "tokens", "input_tokens_per_minute": "input",
    "output_tokens_per_minute": "output", "gpu_us_per_minute": "gpu",
}  # fmt: skip
SPEND = ("spend_ceiling_nanos", "month_nanos")
NAMED = dict.fromkeys(SPEND, "spend") | {
    "gpu_us_per_minute": "gpu_seconds_per_minute", "gpu_us_per_month": "gpu_seconds_per_month",
}  # fmt: skip
LIMITS = (*RATES, "concurrent_requests", "kv_pages", "tokens_per_month", "gpu_us_per_month", *SPEND)
CASES = [
    (at, limit)
    for at, level in enumerate(granted("tn_one", **WIDE).levels)
    for limit in LIMITS
    if getattr(level, limit) >= 0
]

asks = st.builds(ask, st.integers(1, 200), prompts=st.lists(st.integers(1, 200), min_size=1, max_size=3))
earlier = st.lists(st.tuples(asks, st.booleans()), max_size=4)


@contextlib.asynccontextmanager
async def emptied(url: str) -> AsyncIterator[tuple[Redis, Reservations]]:
    """The scripts on an empty server: one example leaves nothing for the next."""
    async with connected(url) as (redis, line):
        await redis.flushall()
        await redis.set(redis_keys.QUOTAS_REBUILT, 1)
        yield redis, scripts(line)


async def take(
    quota: Reservations, wanted: ReservationRequest, allowed: Allowance, pages_max: int = 10**6
) -> ReservationResult:
    return await quota.reserve(wanted, allowed, replica_id="rep_one", replica_pages_max=pages_max)


async def everything(redis: Redis) -> dict[str, object]:
    """All that the server stores. A count of zero is left out, and so is the name of its month."""
    found: dict[str, object] = {}
    for key in sorted(await redis.keys("*")):
        kind = (await redis.type(key)).decode()
        match kind:
            case "hash":
                fields = await redis.hgetall(key)
                value = {name: content for name, content in fields.items() if name != b"month" and content != b"0"}
            case "zset":
                value = await redis.zrange(key, 0, -1, withscores=True)
            case "stream":
                value = await redis.xrange(key)
            case _:
                value = await redis.get(key)
        if value:
            found[key.decode()] = value
    return found


def narrowed(
    level: Level, limit: str, found: dict[str, int], need: dict[str, int], wanted: ReservationRequest
) -> Level:
    """The level with slightly too little of one limit for a request, beside its present holds and usage."""
    free = {
        "concurrent_requests": found.get("concurrent", 0),
        "kv_pages": found.get("kv_pages", 0) + need["kv_pages"] - 1,
        "tokens_per_month": found.get("month_used", 0) + found.get("month_held", 0) + need["month_held"] - 1,
        "gpu_us_per_month": found.get("month_gpu_us", 0) + found.get("gpu_held_us", 0) + need["gpu_held_us"] - 1,
        "spend_ceiling_nanos": found.get("spent_nanos", 0) + found.get("spend_held_nanos", 0)
        + need["spend_held_nanos"] - 1,
        "month_nanos": found.get("month_spent_nanos", 0) + found.get("spend_held_nanos", 0)
        + need["spend_held_nanos"] - 1,
    }  # fmt: skip
    if limit in RATES:
        cost = {
            "requests": 1, "tokens": need["month_held"], "input": sum(wanted.prompts),
            "output": len(wanted.prompts) * wanted.max_tokens, "gpu": need["gpu_held_us"],
        }[RATES[limit]]  # fmt: skip
        free[limit] = cost - 1  # never; buckets that only have to refill belong to the test below
    return msgspec.structs.replace(level, **{limit: free[limit]})


@examples(20, 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=earlier, wanted=asks)
def test_a_request_refused_by_any_limit_of_any_level_takes_nothing(redis_settings, before, wanted):
    async def refuse() -> None:
        async with emptied(redis_settings.redis_url) as (redis, quota):
            wide = granted(**WIDE)
            for each, ended in before:
                assert not (await take(quota, each, wide)).blocked_by
                if ended:
                    assert await settle(quota, each, wide, output_tokens=1, cost_nanos=7, gpu_us=9)
            need = Model().needs(wide, prompts=wanted.prompts, tokens=wanted.max_tokens)
            was = await everything(redis)
            for at, limit in CASES:
                level = narrowed(wide.levels[at], limit, await stored(redis, wide.levels[at].quota), need, wanted)
                levels = (*wide.levels[:at], level, *wide.levels[at + 1 :])
                refused = await take(quota, wanted, msgspec.structs.replace(wide, levels=levels))
                assert (refused.blocked_by, refused.level) == (NAMED.get(limit, limit), level.name)
                assert await everything(redis) == was, (level.name, limit)
            assert not (await take(quota, wanted, wide)).blocked_by
            now = await everything(redis)
            assert all(now[each.quota] != was.get(each.quota) for each in wide.levels), (
                "a change is visible in this comparison"
            )

    asyncio.run(refuse())


@examples(20, 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=earlier, wanted=asks)
def test_a_replica_without_room_changes_no_level(redis_settings, before, wanted):
    async def refuse() -> None:
        async with emptied(redis_settings.redis_url) as (redis, quota):
            wide, there = granted(**WIDE), 0
            for each, _ in before:
                there = (await take(quota, each, wide)).replica_pages_held
            pages = sum(-(-(prompt + wanted.max_tokens) // BLOCK) for prompt in wanted.prompts)
            was = await everything(redis)
            assert (await take(quota, wanted, wide, there + pages - 1)).blocked_by == "replica_pages"
            assert await everything(redis) == was

    asyncio.run(refuse())


@pytest.mark.parametrize(
    ("limit", "burst"),
    [
        ("requests_per_minute", 2), ("tokens_per_minute", 600), ("input_tokens_per_minute", 300),
        ("output_tokens_per_minute", 300), ("gpu_seconds_per_minute", 100),
    ],
)  # fmt: skip
async def test_a_bucket_that_must_refill_refuses_and_no_other_bucket_is_drawn_from(quotas, limit, burst):
    redis, quota = quotas
    nearly_empty = granted(**{**WIDE, limit: burst})
    for _ in range(2):
        assert not (await take(quota, ask(140, prompts=[140]), nearly_empty)).blocked_by
    was = await everything(redis)
    for least in (200, 100):
        refused = await take(quota, ask(200, prompts=[200], least=least), nearly_empty)
        assert (refused.blocked_by, refused.level, refused.wait_us > 0) == (limit, "tenant", True)
        assert await everything(redis) == was
