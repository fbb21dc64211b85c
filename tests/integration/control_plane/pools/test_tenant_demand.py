"""Who waits for pages, as admins read it: over all gateways, by API and on the page."""

import msgspec
import pytest

from core import redis_keys
from core.contracts.demand import GatewayDemand, TenantDemand
from tests.fixtures.control_plane.browser import admin

PATH = "/api/v1/admin/demand"


def demand(tenant_id: str, **changes) -> TenantDemand:
    given = {
        "base_model": "tiny-chat", "is_batch": False, "tier": 1, "weight": 1, "held_pages": 10, "waiting_pages": 0,
        "waiting_requests": 0, "longest_wait_ms": 0,
    }  # fmt: skip
    return TenantDemand(tenant_id=tenant_id, **given | changes)


@pytest.fixture
def report(redis):
    """A gateway lives, and reports these tenants; or it lives without a report."""

    def write(gateway: str, tenants: list[TenantDemand] | None) -> None:
        redis.zadd(redis_keys.GATEWAYS, {gateway: redis.time()[0] * 1000})
        redis.set(redis_keys.gateway(gateway), b"{}")
        if tenants is not None:
            made = GatewayDemand(tenants=tuple(tenants))
            redis.set(redis_keys.gateway_demand(gateway), msgspec.json.encode(made))

    return write


def test_the_longest_wait_comes_first_and_gateways_are_added_up(api, report):
    first, second = api.tenant(), api.tenant()
    waits = demand(second.id, waiting_requests=2, waiting_pages=8, longest_wait_ms=900)
    report("gw_1", [demand(first.id), demand(first.id, is_batch=True, tier=1 << 20, held_pages=3), waits])
    report("gw_2", [demand(first.id, held_pages=5), demand(second.id, tier=0, longest_wait_ms=100)])
    report("gw_3", None)
    shown = api.admin.get(PATH).json()
    assert (shown["gateways"], shown["gateways_without_report"]) == (3, 1)
    rows = [(row["tenant_id"], row["is_batch"], row["tier"], row["held_pages"]) for row in shown["data"]]
    assert rows == [(second.id, False, 0, 20), (first.id, False, 1, 15), (first.id, True, None, 3)]
    wait = shown["data"][0]
    assert (wait["waiting_requests"], wait["waiting_pages"], wait["longest_wait_ms"]) == (2, 8, 900)


def test_an_admin_finds_by_the_screen_who_waits(api, report):
    browser, tenant = admin(api).browser, api.tenant()
    assert "No request runs or waits at 0 gateways" in browser.open("/admin/fairness").text
    waits = demand(tenant.id, waiting_requests=2, waiting_pages=8, longest_wait_ms=12_300)
    report("gw_1", [waits, demand("tn_gone")])
    page = browser.open("/admin/fairness").text
    assert f"/admin/tenants/{tenant.id}" in page
    assert "12.3 s" in page
    assert "tn_gone" in page
