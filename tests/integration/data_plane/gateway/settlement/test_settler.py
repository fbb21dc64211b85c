"""The settler's backlog, replays and journal, with a Redis that is unreachable, restarts or loses data."""

import asyncio

import pytest
from redis.exceptions import RedisError, ResponseError

from core import redis_keys
from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Reservations, Settlement
from data_plane.gateway.settlement.settler import Hold
from tenora.stack.program import free_port
from tests.fixtures.gateway.settlement_setup import billed, journal, recorded_below, settlement, settler


@pytest.fixture
def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


async def test_a_settlement_that_fails_is_settled_when_redis_is_back(nowhere, redis_settings, redis):
    away, _ = settler(nowhere)
    late = [settlement("tn_late") for _ in range(3)]
    away.hold(Hold(late[0].request_id, "tn_late", "rep_one", 1))
    for one in late:
        await away.settle(one)
    assert not await away.flush()
    assert not await away.flush()
    assert set(away.held()) == {late[0].request_id}  # no other request gets its hold while it waits
    assert metrics.RUNNING_REQUESTS._value.get() == 0
    back, line = settler(redis_settings.redis_url)
    away._reservations = back._reservations  # the server is reachable again
    assert await away.flush()
    assert not away.held()
    await away.drain(1)
    assert billed(redis) == sorted(one.request_id for one in late)
    await line.close()


async def test_at_the_limit_billable_settlements_are_kept_longest_and_then_logged_in_full(nowhere, capsys):
    away, _ = settler(nowhere, backlog_max=4)
    for _ in range(10):
        away.settle_later(settlement("tn_free", bills=False))
    assert len(away._backlog) == 2
    billing = [settlement("tn_paid") for _ in range(3)]
    for one in billing:
        away.settle_later(one)
    assert [one.request_id for one in away._backlog if one.event] == [one.request_id for one in billing[:2]]
    assert billing[2].request_id in capsys.readouterr().out


async def test_a_shutdown_without_redis_logs_unsettled_requests(nowhere, capsys):
    away, _ = settler(nowhere)
    free, paid = settlement("tn_1", bills=False), settlement("tn_1")
    away.settle_later(free)
    await away.drain(5)  # not billable, so it does not wait
    away.settle_later(paid)
    await away.drain(0.3)
    log = capsys.readouterr().out
    assert "settlement lost at shutdown" in log
    assert paid.request_id in log


async def test_two_concurrent_flushes_lose_nothing(redis_settings, redis):
    """A shutdown drains while the follower still flushes; each second settlement fails at first."""
    back, line = settler(redis_settings.redis_url, backlog_max=200)
    reach, attempts = back._reservations.settle, 0

    async def unsteady(one: Settlement, *, within_s: float) -> bool:
        nonlocal attempts
        attempts += 1
        if attempts % 2:
            await asyncio.sleep(0)
            raise OSError("away for a moment")
        return await reach(one, within_s=within_s)

    back._reservations.settle = unsteady
    late = [settlement("tn_late") for _ in range(100)]
    for one in late:
        back.settle_later(one)
    while back._backlog:
        await asyncio.gather(back.flush(), back.flush())
    assert billed(redis) == sorted(one.request_id for one in late)
    await line.close()


async def test_a_flush_stops_after_many_refusals_and_the_next_starts_with_other_settlements(redis_settings, redis):
    back, line = settler(redis_settings.redis_url, backlog_max=200)
    reach, asked = back._reservations.settle, []

    async def refusing(one: Settlement, *, within_s: float) -> bool:
        asked.append(one.request_id)
        if one.tenant_id == "tn_odd":
            raise ResponseError("WRONGTYPE")
        return await reach(one, within_s=within_s)

    back._reservations.settle = refusing
    odd, good = [settlement("tn_odd") for _ in range(30)], settlement("tn_good")
    for one in (*odd, good):
        back.settle_later(one)
    assert not await back.flush()
    assert asked == [one.request_id for one in odd[:20]]
    assert not await back.flush()
    assert asked[20:31] == [one.request_id for one in (*odd[20:], good)]
    assert billed(redis) == [good.request_id]
    assert len(back._backlog) == len(odd)
    await line.close()


async def test_a_permanently_refused_settlement_does_not_block_others(redis_settings, redis):
    back, line = settler(redis_settings.redis_url)
    kept, refused, late = [settlement("tn_1") for _ in range(3)]
    await back.settle(kept)
    await back.refresh_replays()
    redis.flushall()
    redis.hset(redis_keys.settled("tn_1", refused.request_id), "no", "marker")
    back.settle_later(refused)
    back.settle_later(late)
    await back.refresh_replays()
    assert not await back.flush()
    assert billed(redis) == sorted((kept.request_id, late.request_id))
    assert list(back._backlog) == [refused]
    await line.close()


async def test_a_shutdown_without_a_journal_waits_for_redis_to_return(redis_settings, redis, monkeypatch):
    back, line = settler(redis_settings.redis_url)
    one, tries = settlement("tn_1"), iter([RedisError("away")] * 3)
    settle = Reservations.settle

    async def away_at_first(*given, **named):
        if (error := next(tries, None)) is not None:
            raise error
        return await settle(*given, **named)

    monkeypatch.setattr(Reservations, "settle", away_at_first)
    back.replay_later(one)
    await back.drain(5)
    assert billed(redis) == [one.request_id]
    await line.close()


@pytest.mark.parametrize("reconnected", [True, False], ids=["restarted", "emptied"])
async def test_a_settlement_that_redis_lost_is_settled_again(redis_settings, redis, tmp_path, reconnected):
    async with journal(tmp_path, "gw_own") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        one, other = settlement("tn_1"), settlement("tn_1")
        await back.settle(one)
        await back.refresh_replays()
        assert await back.flush()
        redis.flushall()
        if reconnected:
            await line.close()
            await asyncio.sleep(0)
        await back.settle(other)
        await back.refresh_replays()
        assert await back.flush()
        await back.refresh_replays()
        assert await back.flush()
        assert billed(redis) == sorted((one.request_id, other.request_id))
        assert own.holds(one.request_id)
        recorded_below(redis)
        await back.drain(1)
        assert not own.holds(one.request_id)
        await line.close()
    assert list(tmp_path.iterdir()) == []


async def test_no_settlement_is_dropped_while_redis_is_away(nowhere, redis_settings, redis):
    back, line = settler(redis_settings.redis_url, retention_s=0)
    one = settlement("tn_1")
    await back.settle(one)
    away, _ = settler(nowhere)
    reach, back._data_loss = back._data_loss, away._data_loss
    await back.refresh_replays()
    redis.flushall()
    back._data_loss = reach
    await back.refresh_replays()
    assert await back.flush()
    assert billed(redis) == [one.request_id]
    await line.close()


async def test_settlements_are_kept_until_billing_has_recorded_them(redis_settings, redis, tmp_path):
    async with journal(tmp_path, "gw_own") as own:
        back, line = settler(redis_settings.redis_url, journal=own, retention_s=0)
        await back.refresh_replays()
        early, late = settlement("tn_1"), settlement("tn_1")
        await back.settle(early)
        await back.refresh_replays()
        assert own.holds(early.request_id)
        recorded_below(redis)
        await back.refresh_replays()
        assert not own.holds(early.request_id)
        await back.settle(late)
        await back.refresh_replays()
        assert own.holds(late.request_id)
        redis.flushall()
        await back.refresh_replays()
        assert await back.flush()
        assert billed(redis) == [late.request_id]
        assert redis.hget(redis_keys.tenant_quota("tn_1"), "month_used") == b"3"
        await line.close()


async def test_kept_settlements_are_bounded_and_the_oldest_go_first(redis_settings, redis):
    back, line = settler(redis_settings.redis_url, retained_max=2)
    await back.refresh_replays()
    some = [settlement("tn_1") for _ in range(4)]
    for one in some:
        await back.settle(one)
    await back.refresh_replays()
    redis.flushall()
    await back.refresh_replays()
    assert await back.flush()
    assert billed(redis) == sorted(one.request_id for one in some[2:])
    await line.close()


async def test_a_settlement_kept_longer_than_its_marker_is_billed_again_and_not_counted_again(redis_settings, redis):
    back, line = settler(redis_settings.redis_url)
    await back.refresh_replays()
    old = settlement("tn_1", ago_s=61)
    await back.settle(old)
    redis.delete(redis_keys.settled("tn_1", old.request_id), redis_keys.gateway_mark("none"))
    await back.refresh_replays()
    assert await back.flush()
    assert billed(redis) == [old.request_id] * 2  # billing knows which events it has recorded
    assert redis.hget(redis_keys.tenant_quota("tn_1"), "month_used") == b"3"
    await line.close()


async def test_a_released_reservation_is_not_renewed(nowhere):
    away, _ = settler(nowhere)
    hold = Hold("req_1", "tn_1", "rep_one", 1)
    away.hold(hold)
    away.release(hold)
    assert not away.held()
    assert metrics.RUNNING_REQUESTS._value.get() == 0
    await away.drain(0.1)
