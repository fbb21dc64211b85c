"""How long a quota slice may be spent: its lease outlives the request that may use it and is renewed in time, and a
slice whose lease may have expired is not spent.
"""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from core import redis_keys
from data_plane.gateway.admission.quota_slices import QuotaSlices, lease_s
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.quota.reservation import Reservations
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.gateway.requests import inference_request, settings_with
from tests.fixtures.gateway.settlement_setup import settler
from tests.fixtures.quota.levels import BLOCK, connected, granted

LEASE_S = 80
SETTINGS = settings_with(quota_slice_requests=2, quota_slice_tokens=256)


@pytest.fixture
async def place(redis_settings):
    """Redis, slices of one gateway, and the object that releases them."""
    async with connected(redis_settings.redis_url) as (redis, line):
        quota = Reservations(line, lease_s=LEASE_S, settled_marker_s=60)
        settling, own = settler(redis_settings.redis_url)
        yield redis, QuotaSlices(quota, settling, SETTINGS, lease_s=LEASE_S), settling
        await own.close()


def sliced(**more: int) -> tuple[InferenceRequest, Allowance]:
    """A request whose plan allows quota slices, and what its caller may take."""
    limits = msgspec.structs.replace(AMPLE, when_quota_is_unavailable="slice", **more)
    allowed = granted(limits=limits)
    return inference_request(allowed.tenant_id, limits=limits, prompt_tokens=10, max_tokens=20), allowed


def aged(slices: QuotaSlices, seconds: float) -> None:
    """As if that much time had gone by."""
    for caller in slices._callers.values():
        caller.slices = type(caller.slices)(
            replace(each, renewed_at=each.renewed_at - seconds) for each in caller.slices
        )


async def expiries(redis, request: InferenceRequest) -> list[float]:
    return [
        score for _, score in await redis.zrange(redis_keys.tenant_leases(request.tenant_id), 0, -1, withscores=True)
    ]


def test_a_lease_covers_the_silence_before_a_request_and_its_longest_run():
    """A slice is spent within a quarter of its lease, and the rest is as long as silence and request together."""
    whole = lease_s(heartbeat_lease_s=5, longest_s=610)
    assert whole - whole / 4 >= 5 + 610


async def test_a_slice_that_may_expire_during_its_request_is_not_spent_until_renewed(place):
    redis, slices, _ = place
    request, allowed = sliced()
    slices.record(request, allowed)
    await slices.run_once()
    before = await expiries(redis, request)
    aged(slices, LEASE_S / 4 + 1)
    assert slices.spend(request, allowed, BLOCK) is None
    await slices.run_once()
    assert min(await expiries(redis, request)) >= max(before)
    assert slices.spend(request, allowed, BLOCK).slice_id
    assert slices.spend(request, allowed, BLOCK).slice_id
    assert slices.spend(request, allowed, BLOCK) is None


async def test_slices_are_renewed_long_before_they_are_too_old_and_not_in_every_round(place):
    redis, slices, _ = place
    request, allowed = sliced()
    slices.record(request, allowed)
    await slices.run_once()
    before = await expiries(redis, request)
    aged(slices, LEASE_S / 8 - 1)
    await slices.run_once()
    assert await expiries(redis, request) == before
    aged(slices, 2)
    await asyncio.sleep(0.002)  # expiries are in whole milliseconds
    await slices.run_once()
    assert min(await expiries(redis, request)) > max(before)


async def test_slices_of_two_gateways_never_exceed_a_limit(place, redis_settings):
    """A month with room for three slices: together they serve three requests without Redis, not four."""
    redis, slices, _ = place
    request, allowed = sliced(tokens_per_month=256 * 3 + 100)
    async with connected(redis_settings.redis_url) as (_, line):
        settling, settler_line = settler(redis_settings.redis_url)
        quota = Reservations(line, lease_s=LEASE_S, settled_marker_s=60)
        other = QuotaSlices(quota, settling, SETTINGS, lease_s=LEASE_S)
        for each in (slices, other):
            each.record(request, allowed)
            await each.run_once()
        await settler_line.close()
    spent = [each.spend(request, allowed, BLOCK) for each in (slices, other) for _ in range(3)]
    assert len([each for each in spent if each is not None]) == 3
    assert await redis.hget(redis_keys.tenant_quota(request.tenant_id), "month_held") == b"768"


async def test_if_redis_lost_one_slice_all_of_its_callers_slices_are_returned_and_taken_again(place):
    redis, slices, settler = place
    request, allowed = sliced()
    slices.record(request, allowed)
    await slices.run_once()
    first, _ = await redis.zrange(redis_keys.tenant_leases(request.tenant_id), 0, -1)
    await redis.zrem(redis_keys.tenant_leases(request.tenant_id), first)
    aged(slices, LEASE_S / 8)
    await slices.run_once()
    assert await settler.flush()
    there = await redis.zrange(redis_keys.tenant_leases(request.tenant_id), 0, -1)
    assert len(there) == SETTINGS.quota_slice_requests
    assert first not in there
    assert await redis.hget(redis_keys.tenant_quota(request.tenant_id), "concurrent") == b"2"
    spent = {slices.spend(request, allowed, BLOCK).slice_id.encode() for _ in there}
    assert spent == set(there)
