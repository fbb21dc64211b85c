"""The journal of a dead process is recovered by the next process: completely, once, and without a loss."""

import os
from pathlib import Path

import pytest

from core import redis_keys
from data_plane.gateway import metrics
from data_plane.gateway.settlement import journal_recovery
from data_plane.gateway.settlement.journal_recovery import JournalRecovery
from tenora.stack.program import free_port
from tests.fixtures.gateway.settlement_setup import billed, journal, no_space, recorded_below, settlement, settler


@pytest.fixture
def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


async def test_a_dead_processs_journal_is_settled_once_by_the_next_process(nowhere, redis_settings, redis, tmp_path):
    late = [settlement("tn_dead") for _ in range(3)]
    async with journal(tmp_path, "jr_dead") as dying:
        away, _ = settler(nowhere, journal=dying)
        for one in late:
            await away.settle(one)  # it returns once the disk has it
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        await back.attempt(late[0])  # this one had reached Redis, but its mark had not reached the disk
        recovery = JournalRecovery(own, back, every_s=60)
        assert await recovery.run_once() == 3
        assert billed(redis) == sorted(one.request_id for one in late)
        assert await recovery.run_once() == 0
        assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"jr_next"}
        await line.close()


async def test_the_journal_of_a_living_process_is_not_recovered(redis_settings, redis, tmp_path):
    async with journal(tmp_path, "jr_living") as living, journal(tmp_path, "jr_own") as own:
        living.append(settlement("tn_living"))
        await living.flush()
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await JournalRecovery(own, back, every_s=60).run_once() == 0
        assert billed(redis) == []
        await line.close()


async def test_a_settlement_older_than_its_marker_is_billed_and_counted_only_after_billing(
    redis_settings, redis, tmp_path
):
    old = settlement("tn_old", ago_s=7200)
    async with journal(tmp_path, "jr_old") as dying:
        dying.append(old)
    before = metrics.JOURNAL_EXPIRED_REPLAYS._value.get()
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        await back.refresh_replays()
        assert await JournalRecovery(own, back, every_s=60).run_once() == 1
        assert billed(redis) == [old.request_id]
        redis.flushall()
        await back.refresh_replays()
        assert await back.flush()
        await line.close()
    assert billed(redis) == [old.request_id]
    assert not redis.exists(redis_keys.tenant_quota("tn_old"))
    assert metrics.JOURNAL_EXPIRED_REPLAYS._value.get() == before + 2


async def test_a_journalled_settlement_that_redis_refuses_is_kept_and_does_not_stop_the_next(
    redis_settings, redis, tmp_path
):
    refused, late = settlement("tn_dead"), settlement("tn_dead")
    redis.hset(redis_keys.settled("tn_dead", refused.request_id), "no", "marker")
    async with journal(tmp_path, "jr_dead") as dying:
        dying.append(refused)
        dying.append(late)
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await JournalRecovery(own, back, every_s=60).run_once() == 2
        assert billed(redis) == [late.request_id]
        assert own.holds(refused.request_id)
        redis.delete(redis_keys.settled("tn_dead", refused.request_id))
        assert await back.flush()
        await line.close()
    assert billed(redis) == sorted((refused.request_id, late.request_id))


async def test_a_dead_processs_journal_stays_while_neither_redis_nor_this_processs_journal_accepts_it(
    redis_settings, redis, tmp_path, monkeypatch
):
    refused, late = settlement("tn_dead"), settlement("tn_dead")
    marker = redis_keys.settled("tn_dead", refused.request_id)
    redis.hset(marker, "no", "marker")
    async with journal(tmp_path, "jr_dead") as dying:
        dying.append(refused)
        dying.append(late)
    left = {path for path in tmp_path.iterdir() if path.name.startswith("jr_dead")}
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        recovery = JournalRecovery(own, back, every_s=60)
        with monkeypatch.context() as full:
            full.setattr(os, "write", no_space)
            assert await recovery.run_once() == 0
        assert not own.holds(refused.request_id)
        assert left <= set(tmp_path.iterdir())
        redis.delete(marker)
        assert await recovery.run_once() == 2
        assert not left & set(tmp_path.iterdir())
        await line.close()
    assert billed(redis) == sorted((refused.request_id, late.request_id))


async def test_an_unreadable_journal_does_not_stop_others_from_being_settled(
    redis_settings, redis, tmp_path, monkeypatch
):
    late, lock = settlement("tn_dead"), journal_recovery.lock

    def not_ours(path: Path) -> int | None:
        if path.name.startswith("jr_a"):
            raise PermissionError(13, "permission denied")
        return lock(path)

    for name in ("jr_a", "jr_b"):
        async with journal(tmp_path, name) as dying:
            dying.append(late if name == "jr_b" else settlement("tn_dead"))
    monkeypatch.setattr(journal_recovery, "lock", not_ours)
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await JournalRecovery(own, back, every_s=60).run_once() == 1
        await line.close()
    assert billed(redis) == [late.request_id]
    assert any(path.name.startswith("jr_a") for path in tmp_path.iterdir())


async def test_a_process_that_ends_before_billing_recorded_everything_leaves_the_rest_to_the_next(
    redis_settings, redis, tmp_path
):
    recorded, one = settlement("tn_1"), settlement("tn_1")
    async with journal(tmp_path, "gw_ends") as ending:
        back, line = settler(redis_settings.redis_url, journal=ending)
        await back.settle(recorded)
        await back.refresh_replays()
        assert await back.flush()
        recorded_below(redis)
        await back.settle(one)
        await back.drain(1)
        await line.close()
    redis.flushall()
    async with journal(tmp_path, "gw_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await JournalRecovery(own, back, every_s=60).run_once() == 1
        assert billed(redis) == [one.request_id]
        assert own.holds(one.request_id)  # this process keeps it now
        await line.close()
