"""Who may take free pages while requests of another gateway wait for them."""

import pytest

from data_plane.gateway.admission.fair_queue import QueueBounds
from data_plane.gateway.admission.pool_queue import PoolQueue
from data_plane.gateway.api.inference_request import FLEX_TIER
from data_plane.gateway.scheduling.fair_share import GatewayBacklog, PageDemand
from tests.fixtures.gateway.requests import inference_request

BOUNDS = QueueBounds(requests_max=256, tokens_max=2_000_000, tenant_requests_max=128)
PAGES, PAGES_OF_REQUEST = 64, 2


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


@pytest.mark.parametrize(("waits_elsewhere", "allowed"), [(FLEX_TIER, True), (1, False), (0, False), (9, False)])
def test_flex_requests_that_wait_elsewhere_take_nothing_from_another_request(waits_elsewhere, allowed):
    """Also from one that came after the gateways' last exchange, of a tenant above its fair share."""
    assert pool_beside(waits_elsewhere).allows(inference_request(), PAGES_OF_REQUEST, PAGES) is allowed


@pytest.mark.parametrize("waits_elsewhere", [0, 1, 9])
def test_a_flex_request_takes_no_page_for_which_another_tier_waits_elsewhere(waits_elsewhere):
    pool = pool_beside(waits_elsewhere)
    flex = inference_request("tn_2", service_tier="flex")
    assert pool.is_below(flex, PAGES_OF_REQUEST, PAGES), "its tenant has nothing"
    assert not pool.allows(flex, PAGES_OF_REQUEST, PAGES)


def test_flex_requests_of_two_gateways_share_like_others():
    pool, flex = pool_beside(FLEX_TIER), inference_request("tn_2", service_tier="flex")
    assert pool.allows(flex, PAGES_OF_REQUEST, PAGES)
    pool.shares.add(flex.share_id, 1, FLEX_TIER, PAGES // 2)
    assert not pool.allows(flex, PAGES_OF_REQUEST, PAGES), "more than its share"
