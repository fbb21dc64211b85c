"""Batch under chats in virtual time: when its running requests give way, at one gateway and for another's chats, and
that requests for different pools do not wait for one another.
"""

import asyncio

import pytest

from tests.fixtures.gateway.simulated_gateways import Stage
from tests.fixtures.virtual_time import run_in_virtual_time

PAGES = 64  # 16 requests of four pages
ABORTED_S = 0.04  # one request has ended on its engine, and another has its place
POLLED_S = 0.5  # the other gateway has read of it, and so has this one of the pages


def waits(stage: Stage, tenant_id: str) -> list[float]:
    found = [each for each in stage.served if each.tenant_id == tenant_id]
    assert all(each.tokens for each in found), "none was refused"
    return [each.waited_s for each in found]


@pytest.mark.parametrize("classes", [("interactive", "near_real_time"), ("interactive", "interactive")])
def test_a_tenant_that_alternates_between_classes_gets_its_share_once(classes):
    stage = Stage(2, pages=PAGES)
    one = [stage.always("one", [8, 8], service_class=each, seconds=0.5) for each in classes]
    run_in_virtual_time(stage.run(*one, stage.always("other", [16, 16], seconds=0.5), seconds=12))
    assert stage.tokens("one") == pytest.approx(stage.tokens("other"), rel=0.1)


def test_batch_leaves_room_for_what_arrives_at_another_gateway():
    """So that, once it has been seen for some seconds, nothing has to give way to it."""
    stage = Stage(2, pages=PAGES)
    batch = stage.always("tn_batch", [24, 0], service_class="batch", seconds=0.7)
    chats = stage.at_a_rate("tn_chat", 10, [0, 1], seconds=0.2)
    run_in_virtual_time(stage.run(batch, chats, seconds=16))
    late = [each.waited_s for each in stage.served if each.tenant_id == "tn_chat" and each.at_s > 8]
    assert len(late) >= 70
    assert max(late) <= 0.01
    assert stage.tokens("tn_batch", after_s=8) > 0, "and the rest is its own"


async def burst(stage: Stage, tenant_id: str, count: int, *, gateway: int = 0, at_s: float = 2.0, **more) -> None:
    await asyncio.sleep(at_s)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(stage.ask(tenant_id, gateway, **more))


@pytest.mark.parametrize("tenant_id", ["tn_batch", "tn_other"])
def test_a_burst_of_chats_gets_its_room_from_batch_at_once(tenant_id):
    """Also from its own tenant's batch, and not one after another."""
    stage = Stage(1, pages=PAGES)
    batch = burst(stage, "tn_batch", 32, at_s=0.1, service_class="batch", seconds=60)
    run_in_virtual_time(stage.run(batch, burst(stage, tenant_id, 5), seconds=4))
    assert len(waits(stage, tenant_id)) == 5
    assert max(waits(stage, tenant_id)) <= ABORTED_S
    assert len(stage.yielded) == 4, "one found room; the others needed these"


def test_batch_gives_way_to_chats_of_another_gateway_and_goes_on_after_them():
    stage = Stage(2, pages=PAGES)
    batch = stage.always("tn_batch", [32, 0], service_class="batch", seconds=0.9)
    run_in_virtual_time(stage.run(batch, burst(stage, "tn_chat", 8, gateway=1), seconds=8))
    assert len(waits(stage, "tn_chat")) == 8
    assert max(waits(stage, "tn_chat")) <= POLLED_S
    assert 6 <= len(stage.yielded) <= 16
    assert stage.tokens("tn_batch", after_s=5) >= 0.9 * stage.tokens_at_most(after_s=5, until_s=8, seconds=0.9)


def test_batch_gives_what_it_has_where_another_gateway_is_owed_more():
    """The rest of the pages runs chats, which nothing ends."""
    stage = Stage(2, pages=PAGES)
    chats = burst(stage, "tn_chat", 10, at_s=0.1, seconds=60)
    batch = burst(stage, "tn_batch", 4, at_s=0.5, service_class="batch", seconds=60)
    owed = burst(stage, "tn_owed", 15, gateway=1, seconds=0.5)
    run_in_virtual_time(stage.run(chats, batch, owed, seconds=6))
    assert len(stage.yielded) == 4
    assert min(waits(stage, "tn_owed")) <= POLLED_S


@pytest.mark.parametrize("chats_at", [0, 1])
def test_batch_of_a_pool_of_its_own_fills_it_and_gives_way_to_no_chat(chats_at):
    """Chats that wait elsewhere could not run there, and those that arrive elsewhere need none of its pages."""
    stage, held = Stage(2, pages=PAGES, replicas=2, wait_s=60), []
    stage.change("rep_0", pool="chat")
    stage.change("rep_1", pool="nightly")

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                at_once = [40 if number == chats_at else 0 for number in range(2)]
                group.create_task(stage.always(f"tn_{number}", at_once, closed_pools=["nightly"]))
            group.create_task(stage.always("tn_batch", [32, 0], service_class="batch", closed_pools=["chat"]))
            await asyncio.sleep(4)
            while True:
                held.append(sum(stage.server.held["rep_1"].values()))
                await asyncio.sleep(0.1)

    run_in_virtual_time(stage.run(scene(), seconds=10))
    assert not stage.yielded
    assert sum(held) >= 0.95 * len(held) * int(0.95 * PAGES)


@pytest.mark.parametrize("shorts_at", [0, 1])
def test_a_short_chat_does_not_wait_for_the_pool_of_long_ones(shorts_at):
    """Also where the tenant's own long requests are the ones that wait, here or at another gateway."""
    stage = Stage(2, pages=PAGES, replicas=2, wait_s=60)
    stage.change("rep_0", pool="long")
    stage.change("rep_1", pool="short")

    async def shorts() -> None:
        await asyncio.sleep(3)
        for _ in range(30):
            await stage.ask("tn", shorts_at, closed_pools=["long"], seconds=0.01)

    long = stage.always("tn", [24, 0], tokens=112, seconds=1.0, closed_pools=["short"])
    run_in_virtual_time(stage.run(long, shorts(), seconds=6))
    short = [each for each in stage.served if each.tokens == 64]
    assert len(short) == 30
    assert max(each.waited_s for each in short) <= 0.005


def test_a_tenants_long_and_short_requests_fill_both_pools():
    """Each pool's next request does not wait for the oldest one, which lacks pages of the other."""
    stage = Stage(1, pages=PAGES, replicas=2, wait_s=60)
    stage.change("rep_0", pool="long")
    stage.change("rep_1", pool="short")
    long = stage.always("tn", [24], tokens=112, seconds=1.0, closed_pools=["short"])
    short = stage.always("tn", [40], seconds=0.3, closed_pools=["long"])
    run_in_virtual_time(stage.run(long, short, seconds=8))
    assert sum(stage.held_s.values()) >= 0.85 * 8 * 2 * int(0.95 * PAGES)
