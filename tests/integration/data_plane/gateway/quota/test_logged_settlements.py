"""The script that settles a request logs it: once, with its usage event, and not at all without an event or a log."""

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from control_plane.request_log.rows import rows_of
from core import redis_keys
from core.contracts.request_log import LoggedRequest, RequestDetails
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.quota.consumption import Used
from data_plane.gateway.quota.reservation import Checkpoint, Reservations, Settlement
from tests.fixtures.quota.levels import ask, connected, event, granted, reserve


@contextlib.asynccontextmanager
async def logging(url: str, entries_max: int, *, lease_s: float = 30) -> AsyncIterator[tuple[Redis, Reservations]]:
    async with connected(url) as (server, line):
        yield server, Reservations(line, lease_s=lease_s, settled_marker_s=60, request_log_max=entries_max)


async def logged(server: Redis) -> list[LoggedRequest]:
    return [row for _, fields in await server.xrange(redis_keys.REQUEST_LOG) for row in rows_of(fields)]


def ending(request_id: str, allowed: Allowance, *, bills: bool = True) -> Settlement:
    usage = event(request_id, allowed.tenant_id, 3) if bills else None
    details = RequestDetails(model="bot", wait_ms=7)
    return Settlement(
        request_id=request_id, tenant_id=allowed.tenant_id, replica_id="rep_one", event=usage, details=details
    )


async def test_a_settlement_that_is_repeated_is_logged_once(redis_settings):
    async with logging(redis_settings.redis_url, 10) as (server, quota):
        wanted, allowed = ask(5), granted()
        await reserve(quota, wanted, allowed)
        for _ in range(2):
            await quota.settle(ending(wanted.request_id, allowed))
        [row] = await logged(server)
        assert (row.request_id, row.wait_ms, row.prompt_tokens) == (wanted.request_id, 7, 3)
        assert await server.xlen(redis_keys.USAGE_STREAM) == 1


@pytest.mark.parametrize(("entries_max", "bills"), [(0, True), (10, False)])
async def test_without_a_log_and_without_an_event_nothing_is_logged(redis_settings, entries_max, bills):
    async with logging(redis_settings.redis_url, entries_max) as (server, quota):
        wanted, allowed = ask(5), granted()
        await reserve(quota, wanted, allowed)
        await quota.settle(ending(wanted.request_id, allowed, bills=bills))
        assert await logged(server) == []


async def test_a_lease_that_expires_is_logged_by_its_checkpoint_and_then_exactly(redis_settings):
    async with logging(redis_settings.redis_url, 10, lease_s=0.001) as (server, quota):
        wanted, allowed = ask(5), granted()
        await reserve(quota, wanted, allowed)
        estimate = msgspec.structs.replace(event(wanted.request_id, allowed.tenant_id, 1), estimated=True)
        checkpoint = Checkpoint(event=estimate, used=Used(input_tokens=1))
        await quota.renew({(allowed.tenant_id, "rep_one"): {wanted.request_id: checkpoint}})
        while not await quota.sweep(allowed.tenant_id):
            pass
        await quota.settle(ending(wanted.request_id, allowed))
        assert [(row.estimated, row.prompt_tokens) for row in await logged(server)] == [(True, 1), (False, 3)]


async def test_a_settlement_for_billing_only_is_logged_too(redis_settings):
    """Its marker may have expired; a query ignores a second row."""
    async with logging(redis_settings.redis_url, 10) as (server, quota):
        late = ending("req_late", granted())
        await quota.bill(late.event, late.details)
        assert [row.request_id for row in await logged(server)] == ["req_late"]
