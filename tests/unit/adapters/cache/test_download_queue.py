"""Turns between owners: properties of the queue for any number of owners, without real downloads."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.download_queue import DownloadQueue, DownloadQueueBounds, DownloadQueueFull
from adapters.object_store.download_progress import Download, DownloadStopped


def make_queue(**changes) -> DownloadQueue:
    bounds = {"running": 2, "running_per_owner": 1, "stalled": 0, "stall_s": 60, "waiting": 99, "waiting_per_owner": 99}
    return DownloadQueue(DownloadQueueBounds(**bounds | changes))


async def hold(queue, owner, seen, release):
    download = Download(owner)
    async with queue.slot(owner, download):
        download.begin()
        seen.append(owner)
        await release.wait()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@given(st.lists(st.sampled_from("abcd"), max_size=24), st.integers(1, 4), st.integers(1, 3))
def test_every_owner_gets_a_turn_and_no_limit_is_exceeded(owners, running, per_owner):
    async def play():
        queue, order = make_queue(running=running, running_per_owner=per_owner), []
        now, most, most_of_one = Counter(), 0, 0

        async def one(owner):
            nonlocal most, most_of_one
            async with queue.slot(owner, Download(owner)):
                order.append(owner)
                now[owner] += 1
                most, most_of_one = max(most, now.total()), max(most_of_one, now[owner])
                await asyncio.sleep(0)
                now[owner] -= 1

        await asyncio.gather(*(one(owner) for owner in owners))
        assert Counter(order) == Counter(owners)
        assert most <= running
        assert most_of_one <= per_owner
        assert not queue._waiting
        assert not queue._running
        assert not queue._of_owner

    asyncio.run(play())


@given(st.integers(1, 30), st.integers(1, 4))
def test_a_late_owner_waits_for_one_round_and_not_for_the_others_queues(flood, others):
    async def play():
        queue, seen, tasks = make_queue(running=1, waiting=200), [], []
        release = asyncio.Event()
        for number in range(flood):
            for other in range(others):
                tasks += [asyncio.create_task(hold(queue, f"o{other}", seen, release))]
            if number == 0:
                await settle()
        tasks.append(asyncio.create_task(hold(queue, "late", seen, release)))
        await settle()
        release.set()
        await asyncio.gather(*tasks)
        assert seen.index("late") <= 2 * others

    asyncio.run(play())


async def test_stalled_downloads_lend_their_slots_up_to_a_bound():
    queue, seen, release = make_queue(running=1, stalled=1, stall_s=0.05), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(queue, owner, seen, release)) for owner in "abc"]
    async with asyncio.timeout(10):
        while len(seen) < 2:  # noqa: ASYNC110 - time itself is what is waited for
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.6)
    assert seen == ["a", "b"], "one slot and one lent slot"
    release.set()
    await asyncio.gather(*tasks)


async def test_requests_above_the_limits_do_not_wait():
    queue, release = make_queue(running=1, waiting=3, waiting_per_owner=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(queue, owner, [], release)) for owner in "abcd"]
    await settle()
    for owner, of_owner in (("b", True), ("e", False)):
        with pytest.raises(DownloadQueueFull) as full:
            async with queue.slot(owner, Download(owner)):
                pass
        assert full.value.of_owner is of_owner
    release.set()
    await asyncio.gather(*tasks)


async def test_the_longest_queue_makes_room_for_an_owner_without_one():
    queue, seen, release = make_queue(running=1, waiting=4), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(queue, owner, seen, release)) for owner in "aaaab"]
    await settle()
    late = asyncio.create_task(hold(queue, "c", seen, release))
    await settle()
    with pytest.raises(DownloadQueueFull):
        await tasks[3]
    release.set()
    await asyncio.gather(*tasks[:3], tasks[4], late)
    assert seen == ["a", "a", "b", "c", "a"]


async def test_a_download_cancelled_while_waiting_or_running_leaves_no_trace():
    queue, seen, release = make_queue(running=1), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(queue, owner, seen, release)) for owner in "abc"]
    await settle()
    tasks[1].cancel()
    await settle()
    tasks[0].cancel()
    await settle()
    assert seen == ["a", "c"]
    release.set()
    await tasks[2]
    assert not queue._waiting
    assert not queue._of_owner


async def test_a_withdrawn_download_does_not_wait():
    queue, release = make_queue(running=1), asyncio.Event()
    first = asyncio.create_task(hold(queue, "a", [], release))
    await settle()
    download = Download("b")

    async def wait():
        async with queue.slot("b", download):
            pass

    second = asyncio.create_task(wait())
    await settle()
    assert queue.rounds_ahead(download) == 1
    queue.withdraw(download)
    with pytest.raises(DownloadStopped):
        await second
    queue.withdraw(download)
    download.stop.set()
    with pytest.raises(DownloadStopped):  # it is stopped before it comes to wait
        await asyncio.wait_for(wait(), 5)
    release.set()
    await first


async def test_the_count_ahead_includes_the_owners_queue_and_the_others_turns():
    queue, release = make_queue(running=2, running_per_owner=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(queue, owner, [], release)) for owner in "ab"]
    await settle()
    transfers = [Download(str(number)) for number in range(3)]

    async def wait(owner, download):
        async with queue.slot(owner, download):
            pass

    tasks += [asyncio.create_task(wait("a", download)) for download in transfers]
    await settle()
    assert [queue.rounds_ahead(download) for download in transfers] == [1, 2, 3]
    tasks += [asyncio.create_task(wait("c", Download("c"))) for _ in range(9)]
    await settle()
    assert queue.rounds_ahead(transfers[2]) == 3, "half of six turns"
    release.set()
    await asyncio.gather(*tasks)
    assert queue.rounds_ahead(transfers[0]) == 0


async def test_a_shared_download_moves_to_the_owner_with_fewer_downloads_before_it():
    queue, seen, release = make_queue(), [], asyncio.Event()
    running = asyncio.create_task(hold(queue, "a", seen, release))
    await settle()
    download = Download("shared")

    async def wait():
        async with queue.slot("a", download):
            seen.append("shared")

    waiting = asyncio.create_task(wait())
    await settle()
    queue.share("a", download)
    await settle()
    assert seen == ["a"], "it is the first that waits, and a's only slot is taken"
    queue.share("b", download)
    await waiting
    release.set()
    await running
    assert seen == ["a", "shared"]
    assert not queue._of_owner
