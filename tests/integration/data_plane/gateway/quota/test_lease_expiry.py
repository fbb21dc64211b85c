"""Live gateways renew their leases; requests of dead gateways are billed once, by their last checkpoints."""

import asyncio

import msgspec

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.contracts.usage import UsageEvent
from core.ids import new_id
from data_plane.gateway.quota.consumption import NOTHING_USED, Used
from data_plane.gateway.quota.reservation import Checkpoint, Settlement
from tests.fixtures.quota.levels import ask, event, granted, reserve, settle, stored

PRICES = Prices(input_nanos=100, cached_input_nanos=10, output_nanos=400, kv_page_second_nanos=50)


async def test_an_orphan_is_billed_once_by_its_last_checkpoint(quotas):
    redis, quota = quotas
    allowed, dead, silent = granted(prices=PRICES, key=KeyLimits(tokens_per_month=1000)), ask(90), ask(90)
    for each in (dead, silent):
        assert not (await reserve(quota, each, allowed)).blocked_by
    group = (allowed.tenant_id, "rep_one")
    for tokens in (5, 9):
        used = Used(output_tokens=tokens, cost_nanos=tokens * 400)
        checkpoint = Checkpoint(event=event(dead.request_id, allowed.tenant_id, tokens), used=used)
        assert await quota.renew({group: {dead.request_id: checkpoint, silent.request_id: None}}) == (0, [], [])
    assert await quota.renew({group: {dead.request_id: None}}) == (0, [], [])
    assert await quota.sweep(allowed.tenant_id) == 0
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {dead.request_id: 1, silent.request_id: 1})
    assert await quota.sweep(allowed.tenant_id) == 2
    (entry,) = await redis.xrange(redis_keys.USAGE_STREAM)
    assert msgspec.json.decode(entry[1][b"event"], type=UsageEvent).input_tokens == 9
    for level in allowed.levels:
        found = await stored(redis, level.quota)
        assert (found["month_used"], found["spent_nanos"], found["month_held"], found["concurrent"]) == (9, 3600, 0, 0)
    assert await redis.zscore(redis_keys.LEASED_TENANTS, allowed.tenant_id) is None
    assert await quota.renew({group: {dead.request_id: None, silent.request_id: None, "req_none": None}}) == (
        3, [dead.request_id, silent.request_id], ["req_none"],
    )  # fmt: skip
    assert await redis.hlen(redis_keys.replica_held_pages("rep_one")) == 1  # the request's total
    assert await redis.hget(redis_keys.replica_held_pages("rep_one"), "total") == b"0"


async def test_an_orphan_that_was_still_running_is_reported_once_and_its_rest_is_counted(quotas):
    redis, quota = quotas
    allowed, alive, silent = granted(prices=PRICES, key=KeyLimits(tokens_per_month=1000)), ask(90), ask(90)
    for each in (alive, silent):
        assert not (await reserve(quota, each, allowed)).blocked_by
    estimate = msgspec.structs.replace(event(alive.request_id, allowed.tenant_id, 5), kv_page_ms=70, estimated=True)
    checkpoint = Checkpoint(event=estimate, used=Used(input_tokens=5, cost_nanos=2000))
    await quota.renew({(allowed.tenant_id, "rep_one"): {alive.request_id: checkpoint}})
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {alive.request_id: 1, silent.request_id: 1})
    assert await quota.sweep(allowed.tenant_id) == 2
    exact = msgspec.structs.replace(
        event(alive.request_id, allowed.tenant_id, 9), output_tokens=40, kv_page_ms=100, first_token_ms=3
    )
    for settled in (True, False):
        ending = Settlement(
            request_id=alive.request_id, tenant_id=allowed.tenant_id, replica_id="rep_one",
            used=Used(input_tokens=9, output_tokens=40, cost_nanos=5000), event=exact,
        )  # fmt: skip
        assert bool(await quota.settle(ending)) == settled
        assert await settle(quota, silent, allowed, output_tokens=1) == settled
    first, second, other = [
        msgspec.json.decode(fields[b"event"], type=UsageEvent)
        for _, fields in await redis.xrange(redis_keys.USAGE_STREAM)
    ]
    assert (first, second) == (estimate, exact)
    assert other.request_id == silent.request_id
    for level in allowed.levels:
        found = await stored(redis, level.quota)
        assert (found["month_used"], found["spent_nanos"], found["month_held"], found["concurrent"]) == (50, 5000, 0, 0)


async def test_what_ran_of_a_line_after_its_lease_expired_is_not_charged(quotas):
    redis, quota = quotas
    allowed, line = granted(prices=PRICES), ask(90)
    assert not (await reserve(quota, line, allowed)).blocked_by
    free = msgspec.structs.replace(event(f"{line.request_id}:yielded1", allowed.tenant_id, 5), outcome="yielded")
    await quota.renew({(allowed.tenant_id, "rep_one"): {line.request_id: Checkpoint(event=free, used=NOTHING_USED)}})
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {line.request_id: 1})
    assert await quota.sweep(allowed.tenant_id) == 1
    assert not await settle(quota, line, allowed, output_tokens=9)
    (entry,) = await redis.xrange(redis_keys.USAGE_STREAM)
    assert msgspec.json.decode(entry[1][b"event"], type=UsageEvent) == free
    assert (await stored(redis, allowed.levels[0].quota))["month_used"] == 0


async def test_a_line_that_is_sent_again_before_its_lease_is_swept_keeps_its_checkpoint(quotas):
    redis, quota = quotas
    allowed, line = granted(prices=PRICES), ask(90)
    assert not (await reserve(quota, line, allowed)).blocked_by
    free = msgspec.structs.replace(event(f"{line.request_id}:yielded1", allowed.tenant_id, 5), outcome="yielded")
    await quota.renew({(allowed.tenant_id, "rep_one"): {line.request_id: Checkpoint(event=free, used=NOTHING_USED)}})
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {line.request_id: 1})
    assert (await reserve(quota, line, allowed)).blocked_by == "ended"
    (entry,) = await redis.xrange(redis_keys.USAGE_STREAM)
    assert msgspec.json.decode(entry[1][b"event"], type=UsageEvent) == free


async def test_leases_and_markers_of_a_version_without_gpu_time_are_ended(quotas):
    redis, quota = quotas
    allowed, old, replayed = granted(prices=PRICES), ask(90), ask(90)
    used = Used(output_tokens=9, cost_nanos=3600)
    for each in (old, replayed):
        assert not (await reserve(quota, each, allowed)).blocked_by
        checkpoint = Checkpoint(event=event(each.request_id, allowed.tenant_id, 9), used=used)
        await quota.renew({(allowed.tenant_id, "rep_one"): {each.request_id: checkpoint}})
        await redis.hdel(redis_keys.reservation(allowed.tenant_id, each.request_id), "gpu", "checkpoint_gpu")
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {old.request_id: 1, replayed.request_id: 1})
    assert await quota.sweep(allowed.tenant_id) == 2
    marker = redis_keys.settled(allowed.tenant_id, replayed.request_id)
    kept = (await redis.get(marker)).split(b" ", 4)
    await redis.set(marker, b" ".join([*kept[:3], kept[4]]))
    assert await settle(quota, replayed, allowed, output_tokens=20)
    assert (await stored(redis, allowed.levels[0].quota))["month_used"] == 29


async def test_many_leases_are_renewed_in_batches_of_bounded_size(quotas):
    _, quota = quotas
    allowed = granted()
    asks = [ask(1) for _ in range(450)]
    await asyncio.gather(*(reserve(quota, each, allowed) for each in asks))
    group = (allowed.tenant_id, "rep_one")
    unknown = new_id("req")
    wanted = {each.request_id: None for each in asks} | {unknown: None}
    assert await quota.renew({group: wanted}) == (1, [], [unknown])


async def test_many_expired_leases_are_ended_in_batches_of_bounded_size(quotas):
    redis, quota = quotas
    allowed = granted()
    asks = [ask(1) for _ in range(250)]
    await asyncio.gather(*(reserve(quota, each, allowed) for each in asks))
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {each.request_id: 1 for each in asks})
    assert [await quota.sweep(allowed.tenant_id) for _ in range(4)] == [100, 100, 50, 0]
    assert (await stored(redis, allowed.levels[0].quota))["concurrent"] == 0
    assert await redis.zscore(redis_keys.LEASED_TENANTS, allowed.tenant_id) is None
