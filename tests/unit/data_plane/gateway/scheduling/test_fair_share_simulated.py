"""Two to four gateways in virtual time over one replica: the fairness bounds of one gateway hold for all together,
however tenants' connections are distributed over them.
"""

import asyncio

import pytest
from prometheus_client import REGISTRY

from benchmarks.load import quantile
from tests.fixtures.gateway.simulated_gateways import Stage
from tests.fixtures.virtual_time import run_in_virtual_time

YIELDS = "tenora_gateway_queue_yields_total"
PAGES = 256  # 64 requests of four pages
SECONDS = 12.0
soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param([2, 30], [90, 6], marks=soak),
        ([64, 0], [40, 60]),
        pytest.param([10, 10, 10, 10], [100, 0, 30, 0], marks=soak),
    ],
)
def test_equal_tenants_get_equal_service_however_they_are_split_over_gateways(ours, theirs):
    stage = Stage(len(ours), pages=PAGES)

    run_in_virtual_time(stage.run(stage.always("one", ours), stage.always("other", theirs), seconds=2 * SECONDS))
    one, other = stage.tokens("one"), stage.tokens("other")
    assert max(one, other) <= 1.10 * min(one, other)
    assert one + other >= 0.95 * stage.tokens_at_most(until_s=2 * SECONDS)


@pytest.mark.parametrize("shares", [[0, 1], *(pytest.param([1] * n, marks=soak) for n in (2, 8))])
def test_a_flood_behind_any_gateway_barely_delays_a_quiet_tenant(shares):
    stage = Stage(len(shares), pages=PAGES, wait_s=3)
    traffic = stage.at_a_rate("quiet", 2, [1] * len(shares)), stage.at_a_rate("flood", 64, shares)
    run_in_virtual_time(stage.run(*traffic, seconds=2 * SECONDS))
    quiet = [each for each in stage.served if each.tenant_id == "quiet" and each.at_s > 3]
    assert all(each.tokens for each in quiet), "none was refused"
    waits = [each.waited_s for each in quiet]
    assert quantile(waits, 0.99) <= 0.06, "a quarter of the 0.25 s that a first token takes"


def test_a_better_tier_goes_first_even_behind_another_gateway():
    stage = Stage(2, pages=PAGES)
    traffic = stage.always("one", [64, 0], tier=1), stage.always("other", [0, 64], tier=2)
    run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
    assert stage.tokens("one") >= 0.95 * stage.tokens_at_most(until_s=SECONDS)
    assert stage.tokens("other") == 0


def test_flex_requests_yield_to_all_others_behind_any_gateway():
    stage = Stage(2, pages=PAGES)
    traffic = stage.always("flex", [128, 0], service_class="batch", tier=0), stage.always("default", [0, 128], tier=9)
    run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
    assert stage.tokens("default") >= 0.95 * stage.tokens_at_most(until_s=SECONDS)
    assert stage.tokens("flex") == 0


def test_flex_requests_that_wait_at_another_gateway_delay_no_other_and_use_what_is_left():
    waits = []
    for flex in (0, 128):
        stage = Stage(2, pages=PAGES, wait_s=30)
        quiet = stage.at_a_rate("quiet", 2, [1, 0])
        run_in_virtual_time(stage.run(quiet, stage.always("flex", [0, flex], service_class="batch"), seconds=SECONDS))
        waits.append([each.waited_s for each in stage.served if each.tenant_id == "quiet"])
        assert stage.tokens("flex") >= (0.9 * stage.tokens_at_most(until_s=SECONDS) if flex else 0)
    assert max(waits[1]) <= max(waits[0]) + 0.06, "it takes of the pages that flex requests leave"


def test_a_tenant_that_yields_to_tenants_behind_another_gateway_is_counted_once():
    stage, before = Stage(2, pages=PAGES), REGISTRY.get_sample_value(YIELDS)
    traffic = stage.always("one", [90, 0]), stage.always("other", [0, 90])
    run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
    yielded = REGISTRY.get_sample_value(YIELDS) - before
    assert 0 < yielded <= len(stage.served) + 180


def test_a_request_larger_than_the_rest_of_a_share_is_served_eventually():
    stage = Stage(2, pages=PAGES)

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.always("small", [100, 100]))
            group.create_task(stage.always("other", [40, 40]))
            await asyncio.sleep(3)
            group.create_task(stage.ask("large", 0, tokens=1000))

    run_in_virtual_time(stage.run(scene(), seconds=SECONDS))
    (large,) = (each for each in stage.served if each.tenant_id == "large")
    assert large.tokens
    assert large.waited_s <= 4, "two seconds until it is overdue, plus the time until enough pages are free"


@pytest.mark.parametrize(("large", "small"), [([2, 0], [0, 12]), pytest.param([1, 1], [6, 6], marks=soak)])
def test_a_request_larger_than_its_share_and_the_free_pages_gets_its_turn(large, small):
    stage = Stage(2, pages=1000)
    traffic = [stage.always(f"small_{number}", small, tokens=304) for number in range(5)]
    traffic.append(stage.always("large", large, tokens=7984, seconds=4.0))  # half of all pages; its share is a sixth
    run_in_virtual_time(stage.run(*traffic, seconds=3 * SECONDS))
    assert sum(each.tokens > 0 for each in stage.served if each.tenant_id == "large") >= 3
    assert sum(stage.held_s.values()) >= 0.75 * 3 * SECONDS * 950, "pages kept for it are not idle for long"


def test_pages_kept_by_another_gateway_are_unavailable_to_adapters_and_base_models():
    held = []
    for adapters in (False, True):
        stage = Stage(2, pages=1000)
        names = ["small_0", "small_1", "small_2", "small_3", "small_4", "large"]
        small, large = ([1, 11], {"tokens": 304}), ([2, 0], {"tokens": 7984, "seconds": 4.0})
        traffic = [
            stage.always(name, at_once, adapter=name if adapters else "", **plan)
            for name, (at_once, plan) in zip(names, [*[small] * 5, large], strict=True)
        ]
        run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
        held.append(dict(stage.held_s))
    assert held[0] == pytest.approx(held[1]), "there are slots enough"


@pytest.mark.parametrize("apart", [([80, 0], [0, 90], [90, 0]), pytest.param(([80], [90], [90]), marks=soak)])
def test_no_pages_are_kept_for_a_request_that_cannot_use_them(apart):
    stage = Stage(len(apart[0]), pages=PAGES // 2, replicas=4)
    stage.change("rep_3", rank_max=64)
    traffic = (
        stage.always(f"rank {rank}", at_once, rank=rank) for rank, at_once in zip((64, 8, 4), apart, strict=True)
    )
    run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
    assert sum(stage.held_s.values()) >= 0.95 * SECONDS * 4 * 121, (
        "also on the three replicas that cannot serve the wide adapter"
    )


def test_requests_that_fill_a_replica_are_shared_like_small_ones():
    stage = Stage(2, pages=100, replicas=8)
    traffic = stage.always("one", [12, 0], tokens=940), stage.always("other", [6, 12], tokens=940)
    run_in_virtual_time(stage.run(*traffic, seconds=2 * SECONDS))
    one, other = stage.tokens("one"), stage.tokens("other")
    assert max(one, other) <= 1.15 * min(one, other), "eight places in all"
    places = 8 * (2 * SECONDS - 3) / 1.3
    assert (one + other) / 956 >= 0.9 * places


@pytest.mark.parametrize("gateways", [2, pytest.param(4, marks=soak)])
def test_at_ten_times_the_capacity_fitting_requests_are_served_and_the_rest_refused_at_once(gateways):
    stage = Stage(gateways, pages=PAGES // 4, wait_s=3)
    per_s = stage.tokens_at_most(after_s=0, until_s=1) / 64  # of each of ten tenants
    traffic = (stage.at_a_rate(f"tn_{n}", per_s, [1] * gateways) for n in range(10))
    run_in_virtual_time(stage.run(*traffic, seconds=SECONDS))
    tokens = [stage.tokens(f"tn_{n}") for n in range(10)]
    assert sum(tokens) >= 0.95 * stage.tokens_at_most(until_s=SECONDS)
    assert max(tokens) <= 2 * min(tokens), "about twenty requests of each"
    refused = [each.waited_s for each in stage.served if not each.tokens and each.at_s >= 3]
    assert len(refused) > 500
    assert quantile(refused, 0.99) <= 0.05


def test_gateways_together_send_a_replica_at_most_as_many_adapters_as_slots():
    stage = Stage(2, pages=PAGES, slots=2)

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            for adapter in ("ad_a", "ad_b"):
                group.create_task(stage.ask(adapter, 0, seconds=10, adapter=adapter))
            await asyncio.sleep(1)
            group.create_task(stage.ask("ad_a, again", 1, adapter="ad_a"))
            group.create_task(stage.ask("ad_c", 1, adapter="ad_c"))
            await asyncio.sleep(0.2)
            group.create_task(stage.ask("the base model", 1))

    run_in_virtual_time(stage.run(scene(), seconds=SECONDS))
    waited_s = {each.tenant_id: each.waited_s for each in stage.served}
    assert waited_s["ad_a, again"] < 0.01, "the adapter is already resident"
    assert 2 <= waited_s["ad_c"] <= 2.3, "overdue: then one adapter too many is the smaller harm"
    assert waited_s["the base model"] < 0.01


@pytest.mark.parametrize("draining", [1, pytest.param(3, marks=soak)])
def test_requests_on_a_draining_replica_do_not_block_the_ready_replica(draining):
    stage, seen = Stage(2, pages=PAGES, replicas=draining + 1), []

    async def scene() -> None:
        stage.change("rep_0", state="draining")
        await asyncio.sleep(0.5)
        async with asyncio.TaskGroup() as group:
            for number in range(60 * draining):
                group.create_task(stage.ask(("one", "other")[number % 2], number % 2, seconds=60))
            await asyncio.sleep(0.5)
            stage.change("rep_0", state="ready")
            for number in range(draining):
                stage.change(f"rep_{number + 1}", state="draining")
            await asyncio.sleep(0.5)
            group.create_task(stage.always("one", [100, 0]))
            group.create_task(stage.always("other", [0, 60]))
            await asyncio.sleep(3)
            while True:
                seen.append(sum(stage.server.held["rep_0"].values()))
                await asyncio.sleep(0.1)

    run_in_virtual_time(stage.run(scene(), seconds=SECONDS))
    assert len(seen) > 50
    assert sum(seen) >= 0.95 * len(seen) * int(0.95 * PAGES), "nearly always, all pages open to all tenants are used"
    one, other = stage.tokens("one"), stage.tokens("other")
    assert max(one, other) <= 1.10 * min(one, other)


def test_a_gateway_that_dies_leaves_its_share_to_the_others_within_seconds():
    stage = Stage(2, pages=PAGES)

    async def scene() -> None:
        other = asyncio.ensure_future(stage.always("other", [0, 100]))
        one = asyncio.ensure_future(stage.always("one", [100, 0]))
        await asyncio.sleep(5)
        one.cancel()
        stage.fall_silent(0)
        await asyncio.gather(other, one, return_exceptions=True)

    run_in_virtual_time(stage.run(scene(), seconds=SECONDS))
    held = [each for each in stage.served if each.tenant_id == "other" and each.ended_s >= 8.5]
    assert sum(each.tokens for each in held) >= 0.95 * stage.tokens_at_most(after_s=8.5, until_s=SECONDS)
