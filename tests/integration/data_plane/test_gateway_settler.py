"""The backlog of settlements, over a line to a Redis that is not there."""

import asyncio
import json

import pytest

from core import keys
from core.ids import new_id
from data_plane.gateway.redis_line import RedisLine
from data_plane.gateway.reservation import Reservations, Settlement
from data_plane.gateway.settlement import Hold, Settler
from tenora.program import free_port
from tests.integration.data_plane.test_quota_scripts import usage


def settler(url: str, backlog_max: int = 4) -> tuple[Settler, RedisLine]:
    line = RedisLine(url, connect_s=1, stalled_s=1, pending_max=10)
    reservations = Reservations(line, lease_s=30, settled_marker_s=60)
    return Settler(reservations, renewal_s=1, deadline_s=1, retry_s=1, backlog_max=backlog_max), line


def settlement(tenant_id: str, *, bills: bool = True) -> Settlement:
    request_id = new_id("req")
    return Settlement(
        request_id=request_id, tenant_id=tenant_id, replica_id="rep_one", used_tokens=3,
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
    back, line = settler(redis_settings.redis_url)
    away._reservations = back._reservations  # the server is reachable again
    assert await away.flush()
    await away.drain(1)
    events = [json.loads(fields[b"event"])["request_id"] for _, fields in redis.xrange(keys.USAGE_STREAM)]
    assert sorted(events) == sorted(one.request_id for one in late)
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
    events = [json.loads(fields[b"event"])["request_id"] for _, fields in redis.xrange(keys.USAGE_STREAM)]
    assert sorted(events) == sorted(one.request_id for one in late)
    await line.close()
