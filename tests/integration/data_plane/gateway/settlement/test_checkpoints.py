"""Leases are renewed on a real Redis, and a request whose lease expired is cut off."""

import pytest
from prometheus_client import Counter

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.quota.allowance import PlatformLimits
from data_plane.gateway.quota.reservation import Checkpoint, Reservations, Settlement
from data_plane.gateway.settlement.checkpoints import Checkpoints
from data_plane.gateway.settlement.settler import Hold
from data_plane.gateway.state.authenticate import Caller
from tests.fixtures.quota.levels import ask, connected, granted, scripts, stored


class Request:
    """A running request whose checkpoints may be broken."""

    def __init__(self, tokens: int | None) -> None:
        self.produced = tokens
        self.error: AppError | None = None

    @property
    def caller(self) -> Caller:
        raise NotImplementedError

    def cut_off(self, error: AppError) -> None:
        self.error = error

    def tokens(self) -> int:
        if self.produced is None:
            raise ValueError("a defect")
        return self.produced

    def checkpoint(self) -> Checkpoint | None:
        return None


@pytest.fixture
async def server(redis_settings):
    async with connected(redis_settings.redis_url) as (redis, line):
        yield redis, scripts(line)


async def held(quota: Reservations, allowed) -> Hold:
    wanted = ask(5)
    assert not (await quota.reserve(wanted, allowed, replica_id="rep_one", replica_pages_max=10**6)).blocked_by
    hold = Hold(wanted.request_id, allowed.tenant_id, "rep_one", 1)
    hold.renewed_at -= 100
    return hold


def checkpoints(quota: Reservations, running: dict[Hold, Request], *others: Hold) -> Checkpoints:
    """Checkpoints of running requests, and of ``others`` whose settlements wait."""
    holds = {each.request_id: each for each in (*running, *others)}
    requests = {hold.request_id: request for hold, request in running.items()}
    return Checkpoints(lambda: holds, requests, quota, every_s=1, tokens=64, renewal_s=5)


def count(metric: Counter) -> float:
    """The value of a counter without labels."""
    (family,) = metric.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


async def test_a_request_whose_checkpoint_fails_does_not_cost_other_requests_their_leases(server, capsys):
    redis, quota = server
    allowed = granted()
    broken, well = await held(quota, allowed), await held(quota, allowed)
    leases = redis_keys.tenant_leases(allowed.tenant_id)
    await redis.zadd(leases, {broken.request_id: 1, well.request_id: 1})
    await checkpoints(quota, {broken: Request(None), well: Request(3)}).run_once()
    assert await redis.zcount(leases, 2, "+inf") == 2
    assert "checkpoint failed" in capsys.readouterr().out


async def test_a_request_with_an_expired_lease_is_cut_off_and_one_lost_by_redis_is_not(server):
    redis, quota = server
    allowed, other = granted(), granted()
    late, forgotten = await held(quota, allowed), await held(quota, other)
    running = {late: Request(3), forgotten: Request(3)}
    await redis.zadd(redis_keys.tenant_leases(allowed.tenant_id), {late.request_id: 1})
    assert await quota.sweep(allowed.tenant_id) == 1
    await redis.delete(
        redis_keys.tenant_leases(other.tenant_id), redis_keys.reservation(other.tenant_id, forgotten.request_id)
    )
    waiting = Hold("req_waiting", allowed.tenant_id, "rep_one", 1)
    waiting.renewed_at -= 100
    lost_before, revoked_before = count(metrics.RESERVATIONS_LOST), count(metrics.ACCESS_REVOKED_REQUESTS)
    await checkpoints(quota, running, waiting).run_once()
    assert running[late].error.code == "reservation_lost"
    assert running[forgotten].error is None
    assert count(metrics.RESERVATIONS_LOST) == lost_before + 1
    assert count(metrics.ACCESS_REVOKED_REQUESTS) == revoked_before


async def test_running_requests_reserve_again_after_redis_lost_its_data(server):
    redis, quota = server
    prices = Prices(input_nanos=3, cached_input_nanos=1, output_nanos=7, kv_page_second_nanos=11)
    allowed = granted(prices=prices, key=KeyLimits(concurrent_requests=5), platform=PlatformLimits(kv_pages=100))
    hold, ended = await held(quota, allowed), await held(quota, allowed)
    for each in (hold, ended):
        each.taken = allowed.taken(input_tokens=0, output_tokens=5, pages=1)
    before = [await stored(redis, level.quota) for level in allowed.levels]
    assert {fields["concurrent"] for fields in before} == {2}
    await redis.flushall()
    await quota.settle(Settlement(request_id=ended.request_id, tenant_id=allowed.tenant_id, replica_id="rep_one"))
    hold.checkpoint_tokens = 3
    await checkpoints(quota, {hold: Request(3), ended: Request(3)}).run_once()
    after = [await stored(redis, level.quota) for level in allowed.levels]
    for name in ("concurrent", "kv_pages", "month_held", "spend_held_nanos"):
        assert [2 * fields[name] for fields in after] == [fields[name] for fields in before]
    assert await redis.hget(redis_keys.replica_held_pages("rep_one"), "total") == b"1"
    assert hold.checkpoint_tokens == 0  # its checkpoint must be written again
    await quota.settle(Settlement(request_id=hold.request_id, tenant_id=allowed.tenant_id, replica_id="rep_one"))
    for level in allowed.levels:
        assert (await stored(redis, level.quota))["spend_held_nanos"] == 0
