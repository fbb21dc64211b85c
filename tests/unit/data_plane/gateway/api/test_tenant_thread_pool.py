"""Threads for long requests: a tenant that sends many of them delays only itself."""

import asyncio
import threading

import pytest

from core.errors import TooManyRequests, Unavailable
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool


@pytest.fixture
def threads():
    made = TenantThreadPool(2, waiting_max=10, tenant_waiting_max=8)
    yield made
    made.close()


async def begun(threads: TenantThreadPool, tenant_id: str, count: int, work) -> list["asyncio.Task"]:
    tasks = [asyncio.create_task(threads.run(tenant_id, work)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_flood_of_one_tenant_leaves_a_thread_for_another(threads):
    release = threading.Event()
    flood = await begun(threads, "tn_a", 8, lambda: release.wait(20))
    try:
        async with asyncio.timeout(10):
            assert await threads.run("tn_b", sum, [1, 2]) == 3
        assert not any(task.done() for task in flood)
    finally:
        release.set()
    assert await asyncio.gather(*flood) == [True] * 8
    assert await threads.run("tn_a", sum, [1, 2]) == 3


async def test_work_above_the_limit_of_a_tenant_or_of_all_is_refused_at_once(threads):
    release = threading.Event()
    flood = await begun(threads, "tn_a", 8, lambda: release.wait(20))
    try:
        with pytest.raises(TooManyRequests):
            await threads.run("tn_a", sum, [1])
        flood += await begun(threads, "tn_b", 2, lambda: release.wait(20))
        with pytest.raises(Unavailable):
            await threads.run("tn_c", sum, [1])
    finally:
        release.set()
    await asyncio.gather(*flood)


async def test_an_error_in_a_thread_reaches_the_caller_and_frees_its_slot(threads):
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            await threads.run("tn_a", divmod, 1, 0)
