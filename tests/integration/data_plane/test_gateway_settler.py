"""The backlog of settlements and the journal, over a line to a Redis that is not there, restarts or forgets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core import keys
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.quota.redis_memory import RedisMemory
from data_plane.gateway.quota.reservation import Reservations, Settlement
from data_plane.gateway.quota.used import Used
from data_plane.gateway.redis_line import RedisLine
from data_plane.gateway.settling.journal import Journal
from data_plane.gateway.settling.journal_takeover import Takeover
from data_plane.gateway.settling.settlement import Hold, Settler
from tenora.program import free_port
from tests.fixtures.quota_levels import event as usage


def settler(url: str, backlog_max: int = 4, journal: Journal | None = None) -> tuple[Settler, RedisLine]:
    """Where no journal is given, one that never opened: it takes nothing."""
    line = RedisLine(url, connect_s=1, stalled_s=1, pending_max=10)
    reservations = Reservations(line, lease_s=30, settled_marker_s=60)
    journal = journal or Journal(Path("nowhere"), "none", segment_max_bytes=4096, bytes_max=4096)
    memory = RedisMemory(line, journal.name, kept_s=60)
    return Settler(reservations, journal, memory, deadline_s=1, retry_s=0.1, kept_s=5, backlog_max=backlog_max), line


@contextlib.asynccontextmanager
async def journal(folder: Path, name: str) -> AsyncIterator[Journal]:
    """One that is written, until its process dies or ends."""
    journaling = Journal(folder, name, segment_max_bytes=4096, bytes_max=65_536)
    journaling.open()
    writing = asyncio.create_task(journaling.follow())
    yield journaling
    writing.cancel()
    await asyncio.wait([writing])
    await journaling.close()


def billed(redis) -> list[str]:
    return sorted(json.loads(fields[b"event"])["request_id"] for _, fields in redis.xrange(keys.USAGE_STREAM))


def settlement(tenant_id: str, *, bills: bool = True) -> Settlement:
    request_id = new_id("req")
    return Settlement(
        request_id=request_id, tenant_id=tenant_id, replica_id="rep_one", used=Used(input_tokens=3),
        event=usage(request_id, tenant_id, 3) if bills else None,
    )  # fmt: skip


@pytest.fixture
def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


async def test_what_cannot_settle_now_settles_when_redis_is_back(nowhere, redis_settings, redis):
    away, _ = settler(nowhere)
    late = [settlement("tn_late") for _ in range(3)]
    away.hold(Hold(late[0].request_id, "tn_late", "rep_one", 1))
    for one in late:
        await away.settle(one)
    assert not await away.flush()
    assert not await away.flush()
    assert set(away.held) == {late[0].request_id}  # what it holds is not another's while it waits
    assert not away.live
    back, line = settler(redis_settings.redis_url)
    away._reservations = back._reservations  # the server is reachable again
    assert await away.flush()
    assert not away.held
    await away.drain(1)
    assert billed(redis) == sorted(one.request_id for one in late)
    await line.close()


async def test_at_the_bound_what_bills_is_kept_longest_and_then_logged_in_full(nowhere, capsys):
    away, _ = settler(nowhere, backlog_max=4)
    for _ in range(10):
        away.settle_later(settlement("tn_free", bills=False))
    assert len(away._backlog) == 2
    billing = [settlement("tn_paid") for _ in range(3)]
    for one in billing:
        away.settle_later(one)
    assert [one.request_id for one in away._backlog if one.event] == [one.request_id for one in billing[:2]]
    assert billing[2].request_id in capsys.readouterr().out


async def test_a_shutdown_without_redis_logs_what_it_could_not_settle(nowhere, capsys):
    away, _ = settler(nowhere)
    free, paid = settlement("tn_1", bills=False), settlement("tn_1")
    away.settle_later(free)
    await away.drain(5)  # nothing that bills: it does not wait
    away.settle_later(paid)
    await away.drain(0.3)
    said = capsys.readouterr().out
    assert "settlement lost at shutdown" in said
    assert paid.request_id in said


async def test_two_flushes_at_once_lose_nothing(redis_settings, redis):
    """A shutdown drains while the follower still flushes; each second settlement fails at first."""
    back, line = settler(redis_settings.redis_url, backlog_max=200)
    reach, attempts = back._reservations.settle, 0

    async def unsteady(one: Settlement) -> bool:
        nonlocal attempts
        attempts += 1
        if attempts % 2:
            await asyncio.sleep(0)
            raise OSError("away for a moment")
        return await reach(one)

    back._reservations.settle = unsteady
    late = [settlement("tn_late") for _ in range(100)]
    for one in late:
        back.settle_later(one)
    while back._backlog:
        await asyncio.gather(back.flush(), back.flush())
    assert billed(redis) == sorted(one.request_id for one in late)
    await line.close()


async def test_what_a_dead_process_had_journalled_is_settled_once_by_the_next(nowhere, redis_settings, redis, tmp_path):
    late = [settlement("tn_dead") for _ in range(3)]
    async with journal(tmp_path, "jr_dead") as dying:
        away, _ = settler(nowhere, journal=dying)
        for one in late:
            await away.settle(one)  # it returns once the disk has it
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        await back.attempt(late[0])  # this one had reached Redis, but not its mark the disk
        takeover = Takeover(own, back, every_s=60, marker_s=60)
        assert await takeover.look() == 3
        assert billed(redis) == sorted(one.request_id for one in late)
        assert await takeover.look() == 0
        assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"jr_next"}
        await line.close()


async def test_the_journal_of_a_living_process_is_left_alone(redis_settings, redis, tmp_path):
    async with journal(tmp_path, "jr_living") as living, journal(tmp_path, "jr_own") as own:
        living.append(settlement("tn_living"))
        await living.flush()
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await Takeover(own, back, every_s=60, marker_s=60).look() == 0
        assert billed(redis) == []
        await line.close()


async def test_what_is_older_than_its_marker_is_billed_and_not_counted(redis_settings, redis, tmp_path):
    old = settlement("tn_old")
    async with journal(tmp_path, "jr_old") as dying:
        dying.append(old)
    before = metrics.journal_stale._value.get()
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await Takeover(own, back, every_s=60, marker_s=0).look() == 1
        await line.close()
    assert billed(redis) == [old.request_id]
    assert not redis.exists(keys.tenant_quota("tn_old"))
    assert metrics.journal_stale._value.get() == before + 1


async def test_a_journalled_settlement_that_redis_refuses_is_kept_and_does_not_stop_the_next(
    redis_settings, redis, tmp_path
):
    refused, late = settlement("tn_dead"), settlement("tn_dead")
    redis.hset(keys.settled("tn_dead", refused.request_id), "no", "marker")
    async with journal(tmp_path, "jr_dead") as dying:
        dying.append(refused)
        dying.append(late)
    async with journal(tmp_path, "jr_next") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        assert await Takeover(own, back, every_s=60, marker_s=60).look() == 2
        assert billed(redis) == [late.request_id]
        assert own.holds(refused.request_id)
        redis.delete(keys.settled("tn_dead", refused.request_id))
        assert await back.flush()
        await line.close()
    assert billed(redis) == sorted((refused.request_id, late.request_id))


@pytest.mark.parametrize("reached_anew", [True, False], ids=["restarted", "emptied"])
async def test_what_redis_forgot_just_after_it_settled_is_settled_again(redis_settings, redis, tmp_path, reached_anew):
    async with journal(tmp_path, "gw_own") as own:
        back, line = settler(redis_settings.redis_url, journal=own)
        one, other = settlement("tn_1"), settlement("tn_1")
        await back.settle(one)
        await back.look_back()
        assert await back.flush()
        redis.flushall()
        if reached_anew:
            await line.close()
            await asyncio.sleep(0)
        await back.settle(other)
        await back.look_back()
        assert await back.flush()
        await back.look_back()
        assert await back.flush()
        assert billed(redis) == sorted((one.request_id, other.request_id))
        assert own.holds(one.request_id)
        await back.drain(1)
        assert not own.holds(one.request_id)
        await line.close()
    assert list(tmp_path.iterdir()) == []


async def test_nothing_is_forgotten_while_redis_is_away(nowhere, redis_settings, redis):
    back, line = settler(redis_settings.redis_url)
    back._kept_s = 0
    one = settlement("tn_1")
    await back.settle(one)
    away, _ = settler(nowhere)
    reach, back._memory = back._memory, away._memory
    await back.look_back()
    redis.flushall()
    back._memory = reach
    await back.look_back()
    assert await back.flush()
    assert billed(redis) == [one.request_id]
    await line.close()
