"""The wait queue over heartbeats in a real Redis: which request is assigned when something changes, that no request is
passed over without end, and that a request that leaves takes no assignment with it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio

from core import redis_keys
from core.contracts.grants import ServiceClass
from core.contracts.replicas import Residency
from core.errors import TooManyRequests, Unavailable
from data_plane.gateway.admission.assignment import Assignment
from data_plane.gateway.admission.fair_queue import QueueBounds
from data_plane.gateway.admission.pool_queue import WaitLimits
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.client_connection import ClientGone
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.fair_share import BacklogBounds
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import PlacementCosts, rank
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.state.redis_clock import RedisClock
from tests.fixtures.gateway.requests import inference_request, replica_status

COSTS = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0
)  # fmt: skip
BOUNDS = QueueBounds(requests_max=6, tokens_max=100_000, tenant_requests_max=5)
PASSED_OVER_S = 0.2
BATCH_WAIT_S = 50.0


@pytest.fixture
async def queue(redis_settings) -> AsyncIterator[WaitQueue]:
    """One replica of ten pages and one slot."""
    async with redis.asyncio.Redis.from_url(redis_settings.redis_url) as client:
        residency = Residency(replica_id="rep_1", boot_id="b", version=1, slots=(None,), memory=(), disk=())
        await client.set(redis_keys.replica("rep_1"), msgspec.json.encode(replica_status(residency_version=1)))
        await client.set(redis_keys.replica_residency("rep_1"), msgspec.json.encode(residency))
        await client.zadd(redis_keys.REPLICAS, {"rep_1": 1})
        neighbours = GatewayPeers("gw_1", RedisClock(), stale_ms=1000)
        replicas = Replicas(client, neighbours, poll_ms=50, stale_s=60, allows=lambda _status: True)
        await replicas.refresh()
        patience = WaitLimits(wait_s=5, batch_wait_s=BATCH_WAIT_S, overdue_after_s=PASSED_OVER_S, poll_s=10)
        yield WaitQueue(replicas, COSTS, BOUNDS, patience, BacklogBounds(tenants_max=64, adapters_max=64))


def request(tenant_id: str, pages: int = 2, adapter: str = "", **more: ServiceClass) -> InferenceRequest:
    return inference_request(
        tenant_id, adapter=f"{adapter}@{'a' * 64}" if adapter else "", prompt_tokens=16, max_tokens=16 * (pages - 1),
        min_tokens=1, **more,
    )  # fmt: skip


def admit(queue: WaitQueue, wanted: InferenceRequest) -> Assignment:
    """An assignment at once, as Redis would confirm it."""
    (candidate,) = queue.ranking(wanted).now
    return confirm(queue.assign(wanted, candidate))


def confirm(assignment: Assignment) -> Assignment:
    occupancy = assignment.occupancy
    occupancy.answered(assignment.candidate.load.held_pages + occupancy.pages, granted_pages=occupancy.pages)
    return assignment


def free(queue: WaitQueue, assignment: Assignment) -> None:
    assignment.occupancy.give_back()
    queue.wake("m")


async def a_moment() -> None:
    """Requests that can be assigned are assigned, and their tasks run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def waits(queue: WaitQueue, wanted: InferenceRequest) -> "asyncio.Task[Assignment]":
    """A request that waits for its turn."""
    entry = queue.enter(wanted)
    task = asyncio.create_task(queue.wait(entry))
    await asyncio.sleep(0)
    return task


async def assigned(task: "asyncio.Task[Assignment]") -> Assignment:
    async with asyncio.timeout(1):
        return confirm(await task)


async def test_a_request_that_ends_makes_room_for_the_next_at_once(queue):
    assignments = [admit(queue, request("tn_a")) for _ in range(5)]
    task = await waits(queue, request("tn_b"))
    await asyncio.sleep(0.05)
    assert not task.done()
    free(queue, assignments[0])
    assert (await assigned(task)).candidate.status.id == "rep_1"


async def test_a_large_request_is_not_passed_over_indefinitely(queue):
    assignments = [admit(queue, request("tn_small")) for _ in range(5)]
    small = [await waits(queue, request("tn_small")) for _ in range(5)]
    large = await waits(queue, request("tn_large", pages=8))
    for _ in range(2):  # its turn comes, it does not fit, and small requests pass it
        free(queue, assignments.pop())
        await a_moment()
    passed = [task for task in small if task.done()]
    assert len(passed) == 2
    assignments += [await assigned(task) for task in passed]
    await asyncio.sleep(1.5 * PASSED_OVER_S)
    for _ in range(4):  # now the pages that become free are reserved for it
        free(queue, assignments.pop())
        await a_moment()
    assert await assigned(large)
    assert sum(task.done() for task in small) == 2, "none of them passed it again"
    for task in small:
        task.cancel()


async def test_a_request_whose_adapter_has_no_slot_is_assigned_once_it_is_overdue(queue):
    running = admit(queue, request("tn_a", adapter="ad_a"))
    other = await waits(queue, request("tn_b", adapter="ad_b"))
    assert await assigned(await waits(queue, request("tn_c"))), "a base model needs no slot"
    await asyncio.sleep(1.5 * PASSED_OVER_S)
    assert not other.done()
    queue.wake("m")
    assert await assigned(other)
    assert running.candidate.load.adapters.keys() == {f"ad_a@{'a' * 64}", f"ad_b@{'a' * 64}"}


async def test_an_assignment_made_as_its_request_leaves_passes_to_the_next(queue):
    assignments = [admit(queue, request("tn_a")) for _ in range(5)]
    leaving = await waits(queue, request("tn_b"))
    staying = await waits(queue, request("tn_c"))
    free(queue, assignments[0])
    await asyncio.sleep(0)  # tn_b's turn, before its task runs
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving
    assert await assigned(staying)
    assert staying.result().candidate.load.held_pages == 10


async def test_a_caller_that_disconnects_leaves_the_queue_at_once(queue):
    assignments = [admit(queue, request("tn_a")) for _ in range(5)]
    entry = queue.enter(request("tn_b"))
    task = asyncio.create_task(queue.wait(entry))
    await asyncio.sleep(0)
    entry.item.refuse(ClientGone())
    with pytest.raises(ClientGone):
        await task
    assert queue.goes_first(request("tn_c"))
    free(queue, assignments[0])
    assert assignments[0].candidate.load.taken_pages == 8


async def test_a_caller_that_disconnects_during_its_reservation_does_not_wait_again(queue):
    entry = queue.enter(request("tn_b"))
    assignment = await queue.wait(entry)
    entry.item.refuse(ClientGone())
    queue.put_back(entry, assignment)
    async with asyncio.timeout(1):
        with pytest.raises(ClientGone):
            await queue.wait(entry)
    assert queue.goes_first(request("tn_c"))


async def test_changes_in_one_iteration_of_the_loop_cause_one_scan_and_no_useless_ranking(queue, monkeypatch):
    ranked = 0

    def counted(*arguments, **options):
        nonlocal ranked
        ranked += 1
        return rank(*arguments, **options)

    monkeypatch.setattr("data_plane.gateway.admission.queue_scan.rank", counted)
    assignments = [admit(queue, request("tn_a")) for _ in range(5)]
    waiting = [await waits(queue, request(f"tn_{number}")) for number in range(6)]
    ranked = 0
    for _ in range(20):
        queue.wake("m")
        queue.wake_all()
    await a_moment()
    assert ranked == 0, "no replica has a page"
    for assignment in assignments[:2]:
        free(queue, assignment)
    await a_moment()
    assert sum(task.done() for task in waiting) == ranked == 2
    for task in waiting:
        task.cancel()


async def test_a_request_that_is_pushed_out_gets_a_realistic_retry_time(queue):
    assignments = [admit(queue, request("tn_a")) for _ in range(5)]
    flood = [await waits(queue, request("tn_a")) for _ in range(5)]
    other = await waits(queue, request("tn_b"))
    newcomer = await waits(queue, request("tn_c"))
    with pytest.raises(Unavailable) as refused:
        await flood[-1]
    assert (refused.value.code, refused.value.status) == ("overloaded", 503)
    assert 0.5 <= refused.value.retry_after_s <= 60
    for assignment in assignments:
        free(queue, assignment)
    assert await assigned(other)
    assert await assigned(newcomer)
    for task in flood[:-1]:
        task.cancel()


async def test_a_request_that_waits_too_long_is_refused_at_the_deadline(queue):
    admit(queue, request("tn_a", pages=10))
    entry = queue.enter(request("tn_b"))
    entry.item.deadline = asyncio.get_running_loop().time() + 0.05
    with pytest.raises(Unavailable):
        await queue.wait(entry)
    assert queue.goes_first(request("tn_c"))


async def test_a_flex_request_waits_for_all_others_and_is_served_when_there_is_room(queue):
    running = [admit(queue, request("tn_a")) for _ in range(5)]
    flex = await waits(queue, request("tn_flex", service_class="batch"))
    others = [await waits(queue, request(tenant)) for tenant in ("tn_a", "tn_b", "tn_flex")]
    for ended, expected in ((1, 1), (2, 2), (3, 3)):  # each place goes to a request that is not flex
        free(queue, running[ended - 1])
        await a_moment()
        assert sum(task.done() for task in others) == expected
        assert not flex.done()
    free(queue, running[3])
    assert await assigned(flex)


async def test_a_waiting_flex_request_delays_no_other_request(queue):
    """A request that finds room goes first, without a look at its tenant's limits before it waits."""
    for _ in range(4):
        admit(queue, request("tn_a"))
    flex = await waits(queue, request("tn_flex", pages=4, service_class="batch"))
    assert queue.goes_first(request("tn_b"))
    assert not queue.goes_first(request("tn_b", service_class="batch"))
    confirm(next(queue.assign_now(request("tn_b"))))
    assert not flex.done()
    flex.cancel()


async def test_no_replica_is_reserved_for_a_flex_request_that_others_pass(queue):
    running = [admit(queue, request("tn_a")) for _ in range(5)]
    large = await waits(queue, request("tn_flex", pages=8, service_class="batch"))
    small = await waits(queue, request("tn_small", service_class="batch"))
    free(queue, running[0])
    await a_moment()
    assert await assigned(small), "it passes the large one"
    await asyncio.sleep(1.5 * PASSED_OVER_S)
    free(queue, running[1])
    await a_moment()
    assert not large.done()
    assert confirm(next(queue.assign_now(request("tn_b"))))
    large.cancel()


async def test_flex_requests_make_room_in_a_full_queue_for_as_many_tokens_as_another_needs(queue):
    admit(queue, request("tn_a", pages=10))
    flex = [await waits(queue, request(f"tn_{n}", pages=1_000, service_class="batch")) for n in range(6)]
    other = await waits(queue, request("tn_b", pages=2_000))
    refused = [task for task in flex if task.done()]
    assert len(refused) == 2, "96,000 tokens waited; 32,000 more need two of 16,000"
    for task in refused:
        with pytest.raises(TooManyRequests) as error:
            await task
        assert (error.value.code, error.value.status) == ("resource_unavailable", 429)
    assert not other.done()
    for task in [*flex, other]:
        task.cancel()


async def test_a_flex_request_that_waits_too_long_is_refused_as_openai_refuses_it(queue):
    admit(queue, request("tn_a", pages=10))
    entry = queue.enter(request("tn_b", service_class="batch"))
    loop = asyncio.get_running_loop()
    assert entry.item.deadline == pytest.approx(loop.time() + BATCH_WAIT_S, abs=1)
    entry.item.deadline = loop.time() + 0.05
    with pytest.raises(TooManyRequests) as refused:
        await queue.wait(entry)
    assert (refused.value.code, refused.value.status) == ("resource_unavailable", 429)
    assert refused.value.retry_after_s >= 0.5
