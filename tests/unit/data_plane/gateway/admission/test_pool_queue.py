"""Who may take free pages while requests of another gateway wait for them, and how many of them batch leaves free."""

import pytest

from data_plane.gateway.admission.fair_queue import QueueBounds, QueueEntry
from data_plane.gateway.admission.pool_queue import ArrivedPages, PoolQueue
from data_plane.gateway.api.inference_request import BATCH_TIER, InferenceRequest
from data_plane.gateway.scheduling.fair_share import BacklogBounds, GatewayBacklog, PageDemand
from data_plane.gateway.scheduling.placement import Candidate
from data_plane.gateway.scheduling.replica_load import ReplicaLoad
from tests.fixtures.gateway.requests import inference_request, replica_status

BOUNDS = QueueBounds(requests_max=256, tokens_max=2_000_000, tenant_requests_max=128)
PAGES, PAGES_OF_REQUEST = 64, 2


def waiting_entry(request: InferenceRequest) -> QueueEntry:
    return QueueEntry(
        tenant_id=request.share_id, tokens=request.tokens, pages=2, tier=request.tier, item=Waits(request)
    )


class Waits:
    """As much of a waiting request as its queue asks for."""

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request


def pool_beside(tier: int) -> PoolQueue:
    """A pool whose tenant holds three quarters of the pages here, while requests of this tier wait elsewhere for as
    many as there are.
    """
    pool, held = PoolQueue(BOUNDS), PAGES * 3 // 4
    pool.shares.add("tn_1", 1, 1, held)
    others = [GatewayBacklog(tenants={"elsewhere": PageDemand(1, tier, 0, PAGES)})]
    pool.apply(GatewayBacklog(tenants={"tn_1": PageDemand(1, 1, held, 0)}), others, PAGES, now_s=1.0)
    assert pool.gateway_share.bounded
    assert not pool.is_below(inference_request(), PAGES_OF_REQUEST, PAGES)
    return pool


@pytest.mark.parametrize(("waits_elsewhere", "allowed"), [(BATCH_TIER, True), (1, False), (0, False), (9, False)])
def test_flex_requests_that_wait_elsewhere_take_nothing_from_another_request(waits_elsewhere, allowed):
    """Also from one that came after the gateways' last exchange, of a tenant above its fair share."""
    assert pool_beside(waits_elsewhere).allows(inference_request(), PAGES_OF_REQUEST, PAGES) is allowed


@pytest.mark.parametrize("waits_elsewhere", [0, 1, 9])
def test_a_flex_request_takes_no_page_for_which_another_tier_waits_elsewhere(waits_elsewhere):
    pool = pool_beside(waits_elsewhere)
    flex = inference_request("tn_2", service_class="batch")
    assert pool.is_below(flex, PAGES_OF_REQUEST, PAGES), "its tenant has nothing"
    assert not pool.allows(flex, PAGES_OF_REQUEST, PAGES)


def test_flex_requests_of_two_gateways_share_like_others():
    pool, flex = pool_beside(BATCH_TIER), inference_request("tn_2", service_class="batch")
    assert pool.allows(flex, PAGES_OF_REQUEST, PAGES)
    pool.shares.add(flex.share_id, 1, BATCH_TIER, PAGES // 2)
    assert not pool.allows(flex, PAGES_OF_REQUEST, PAGES), "more than its share"


def test_one_busy_half_second_of_fifteen_sets_the_percentile_and_one_of_sixty_does_not():
    arrived = ArrivedPages()
    for half in range(120):
        arrived.add(8, 100 + half / 2)
        arrived.add(2 if half % 15 else 40, 100.45 + half / 2)
    assert arrived.p95(160) == 48
    arrived = ArrivedPages()
    for half in range(120):
        arrived.add(10 if half % 60 else 1_000, 100 + half / 2)
    assert arrived.p95(160) == 10


def test_requests_that_came_more_than_a_minute_ago_count_no_longer():
    arrived = ArrivedPages()
    for half in range(120):
        arrived.add(8, half / 2)
    assert arrived.p95(60) == 8
    assert arrived.p95(118) == 0
    assert arrived.p95(1e9) == 0


SIZES = {"chat": 60, "long": 40, "nightly": 100}
CHATS, LONG, NIGHTLY = (frozenset(SIZES) - {name} for name in SIZES)  # the closed pools of requests for one alone


def arrivals(pages: int, closed: frozenset[str]) -> PoolQueue:
    """A pool for which so many pages arrived in each half second of the last minute."""
    pool = PoolQueue(BOUNDS)
    for half in range(121):
        pool.arrived[closed].add(pages, half / 2)
    return pool


@pytest.mark.parametrize(
    ("closed", "left_free"),
    [
        (CHATS, {"chat": 0.2}), (LONG, {"long": 0.3}),
        (frozenset({"nightly"}), {"chat": 8 / 60, "long": 5 / 40}),
        (frozenset(), {"chat": 4 / 60, "long": 3 / 40, "nightly": 0.06}),
    ],
)  # fmt: skip
def test_batch_leaves_pages_in_the_pools_that_serve_what_arrives(closed, left_free):
    assert arrivals(12, closed).left_free(SIZES, 60.5) == left_free


def test_batch_leaves_free_what_arrives_at_other_gateways_too_but_never_more_than_three_quarters():
    reported = arrivals(20, CHATS).backlog([], SIZES, BacklogBounds(tenants_max=9, adapters_max=9), 60.5)
    assert reported.arriving == {"chat": 20}
    pool = arrivals(10, CHATS)
    pool.apply(GatewayBacklog(), [reported, GatewayBacklog(arriving={"chat": 3, "nightly": 1000})], PAGES, now_s=60.5)
    assert pool.left_free(SIZES, 60.5) == {"chat": 33 / 60, "nightly": 0.75}
    pool.apply(GatewayBacklog(), [], PAGES, now_s=200)
    assert pool.left_free(SIZES, 200) == {}
    assert not pool.arrived, "nothing is kept of what came long ago"


def test_a_pool_that_a_single_request_used_is_one_that_others_use_and_keeps_no_page_free():
    pool = PoolQueue(BOUNDS)
    pool.arrived[CHATS].add(12, 30.0)
    assert pool.left_free(SIZES, 60.5) == {"chat": 0}
    reported = pool.backlog([], SIZES, BacklogBounds(tenants_max=9, adapters_max=9), 60.5)
    other = PoolQueue(BOUNDS)
    other.apply(GatewayBacklog(), [reported], PAGES, now_s=60.5)
    assert other.left_free(SIZES, 60.5) == {"chat": 0}


def test_a_request_waits_only_for_those_that_could_use_its_pools():
    pool = PoolQueue(BOUNDS)
    pool.queue.push(waiting_entry(inference_request(closed_pools=LONG)))

    def is_ahead(closed: frozenset[str], **more: str) -> bool:
        return pool.is_ahead_of_all(inference_request(closed_pools=closed, **more), SIZES)

    assert is_ahead(CHATS)
    assert is_ahead(NIGHTLY, service_class="batch")
    assert not is_ahead(LONG)
    assert not is_ahead(frozenset({"nightly"})), "either may use the pool `long`"
    assert not is_ahead(frozenset())
    pool.queue.push(waiting_entry(inference_request("tn_2", service_class="batch", closed_pools=NIGHTLY)))
    assert is_ahead(CHATS)
    assert not is_ahead(NIGHTLY, service_class="batch"), "batch waits for batch"


def test_other_gateways_leave_pools_alone_that_serve_none_of_what_waits():
    pool = PoolQueue(BOUNDS)
    for tenant, closed in (("tn_1", CHATS), ("tn_2", frozenset({"nightly"}))):
        pool.queue.push(waiting_entry(inference_request(tenant, closed_pools=closed)))
    replicas = [
        Candidate(replica_status(name, pool=name, pages_total=pages), ReplicaLoad()) for name, pages in SIZES.items()
    ]
    reported = pool.backlog(replicas, SIZES, BacklogBounds(tenants_max=9, adapters_max=9), 0)
    assert reported.closed_pools == ["nightly"]
    other = PoolQueue(BOUNDS)
    other.apply(GatewayBacklog(tenants={"tn_3": PageDemand(1, 1, PAGES, 0)}), [reported], PAGES, now_s=2.0)
    assert other.gateway_share.bounded
    wants = other.gateway_share.division.wants
    assert wants(replica_status(pool="chat"))
    assert not wants(replica_status(pool="nightly"))


def test_a_tenant_is_reported_with_what_it_holds_and_how_long_it_waits_and_its_batch_apart():
    pool, chat, batch = PoolQueue(BOUNDS), inference_request("tn_1"), inference_request("tn_1", service_class="batch")
    pool.shares.add(chat.share_id, 3, 1, 40)
    for request, arrived in ((chat, 99.0), (chat, 99.5), (batch, 90.0)):
        entry = waiting_entry(request)
        entry.item.arrived = arrived
        pool.queue.push(entry)
    own, nightly = sorted(pool.tenant_demands("tiny", 100.0), key=lambda each: each.is_batch)
    assert (own.tenant_id, own.weight, own.held_pages, own.waiting_requests, own.waiting_pages) == ("tn_1", 3, 40, 2, 4)
    assert (own.longest_wait_ms, nightly.longest_wait_ms) == (1_000, 10_000)
    assert (nightly.tenant_id, nightly.is_batch, nightly.held_pages, nightly.waiting_requests) == ("tn_1", True, 0, 1)
