"""Background tasks of an agent: a failing task is repeated and harms no other, and all end on ``close``."""

import asyncio

import pytest

from data_plane.engine.agent.background_tasks import BackgroundTasks


@pytest.fixture
async def tasks():
    tasks = BackgroundTasks(backoff_max_s=0.05)
    yield tasks
    await tasks.close()


async def test_a_failing_task_is_repeated_and_harms_no_other(tasks):
    calls = {"broken": 0, "whole": 0}
    recovered = asyncio.Event()

    async def broken() -> None:
        calls["broken"] += 1
        if calls["broken"] < 3:
            raise RuntimeError("a defect")
        recovered.set()

    async def whole() -> None:
        calls["whole"] += 1

    tasks.start("broken", broken, interval_s=0.01)
    tasks.start("whole", whole, interval_s=0.01)
    await asyncio.wait_for(recovered.wait(), 10)
    assert calls["whole"] >= 3


async def test_closing_ends_tasks_even_if_they_swallow_the_cancellation(tasks):
    swallowed, begun = [], asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.append(True)
            if len(swallowed) > 1:
                raise

    tasks.start("stubborn", stubborn, interval_s=60)
    await begun.wait()
    await asyncio.wait_for(tasks.close(), 10)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "stubborn"]
