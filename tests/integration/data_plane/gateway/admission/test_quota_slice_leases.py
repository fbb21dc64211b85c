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
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.journal import Journal
from data_plane.gateway.settlement.redis_data_loss import RedisDataLossDetector
from data_plane.gateway.settlement.replay_buffer import ReplayBuffer
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.redis_clock import RedisClock
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.gateway.requests import inference_request
from tests.fixtures.quota.levels import BLOCK, connected, granted
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

LEASE_S = 80
SETTINGS = GatewaySettings(
    redis_url="redis://x", key_pepper="p" * 16, engine_key="e" * 16, salt_secret="s" * 16,
    snapshot_public_keys=PUBLIC_KEYS, quota_slice_requests=2, quota_slice_tokens=256,
)  # fmt: skip


@pytest.fixture
async def place(redis_settings, tmp_path):
    """Redis, slices of one gateway, and the object that releases them."""
    async with connected(redis_settings.redis_url) as (redis, line):
        quota = Reservations(line, lease_s=LEASE_S, settled_marker_s=60)
        journal = Journal(tmp_path, "gw_1", segment_max_bytes=4096, bytes_max=65_536)
        memory, kept = RedisDataLossDetector(line, "gw_1", ttl_s=60), ReplayBuffer(journal, retention_s=1, count_max=10)
        settler = Settler(
            quota, journal, memory, kept, RedisClock(), deadline_s=1, retry_s=0.1, marker_s=60, backlog_max=100
        )  # fmt: skip
        yield redis, QuotaSlices(quota, settler, SETTINGS, lease_s=LEASE_S), settler


def sliced(request_id: str = "req_1") -> tuple[InferenceRequest, Allowance]:
    """A request whose plan allows quota slices, and what its caller may take."""
    limits = msgspec.structs.replace(AMPLE, when_quota_is_unavailable="slice")
    allowed = granted(limits=limits)
    request = inference_request(
        allowed.tenant_id, request_id=request_id, limits=limits, prompt_tokens=10, max_tokens=20
    )
    return request, allowed


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
