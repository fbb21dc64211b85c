"""Versions of a plan that change a part, that are withdrawn before they begin, and what a tenant sees of all that."""

from datetime import UTC, datetime, timedelta

from tests.fixtures.control_plane.api import LIMITS, PRICES


def later(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def test_a_version_needs_what_changes_and_a_tenant_sees_what_comes_until_it_is_withdrawn(api):
    plan = api.plan(prices={"base_fee_nanos": 5_000_000_000})
    versions = f"/api/v1/admin/plans/{plan['id']}/versions"
    tenant = api.tenant(plan["name"])

    def add(**body):
        answer = api.admin.post(versions, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    far = add(prices={"output_usd_per_million": "0.9"}, effective_from=later(20))
    near = add(prices={"input_usd_per_million": "0.2"}, limits={"kv_pages": 7}, effective_from=later(10))
    last = add(prices={"base_fee_usd": 0}, effective_from=later(30))
    assert (near["limits"], near["prices"]["base_fee_nanos"]) == (far["limits"] | {"kv_pages": 7}, 5_000_000_000)
    assert (last["prices"]["output_nanos"], last["limits"]["kv_pages"]) == (900, LIMITS["kv_pages"])
    assert "base_fee_nanos" not in last["prices"]

    seen = tenant.http.get("/api/v1/plan").json()
    assert (seen["plan"], seen["limits"]["kv_pages"]) == (plan["name"], LIMITS["kv_pages"])
    assert PRICES.items() <= seen["prices"].items()
    assert (seen["prices"]["input_usd_per_million"], seen["prices"]["base_fee_usd"]) == ("0.10", "5")
    assert [each["effective_from"] for each in seen["changes"]] == [
        each["effective_from"] for each in (near, far, last)
    ]
    assert [each["prices"]["input_nanos"] for each in seen["changes"]] == [200, 100, 100]

    gone = api.admin.delete(f"{versions}/{near['number']}")
    assert (gone.status_code, gone.json()["number"]) == (200, near["number"])
    assert api.admin.delete(f"{versions}/{near['number']}").json()["withdrawn_at"] == gone.json()["withdrawn_at"]
    listed = api.admin.get(versions).json()["data"]
    assert [each["number"] for each in listed if each["withdrawn_at"]] == [near["number"]]
    changes = tenant.http.get("/api/v1/plan").json()["changes"]
    assert [each["effective_from"] for each in changes] == [far["effective_from"], last["effective_from"]]
    again = add(prices={"input_nanos": 300}, effective_from=near["effective_from"])
    assert again["number"] == 5
    assert tenant.http.get("/api/v1/plan").json()["changes"][0]["prices"]["input_nanos"] == 300


def test_a_version_that_has_begun_or_never_was_is_not_withdrawn(api):
    versions = f"/api/v1/admin/plans/{api.plan()['id']}/versions"
    begun = api.admin.delete(f"{versions}/1")
    assert (begun.status_code, begun.json()["code"]) == (409, "plan_version_begun")
    for number in (9, 2**32, -(2**70)):
        absent = api.admin.delete(f"{versions}/{number}")
        assert (absent.status_code, absent.json()["code"]) == (404, "plan_version_not_found")


def test_a_tenant_sees_its_own_limits_prices_and_its_next_plan(api):
    tenant, big = api.tenant(api.plan()["name"]), api.plan(prices={"input_nanos": 7})
    route = f"/api/v1/admin/tenants/{tenant.id}"
    api.admin.patch(route, json={"limits": {"spend_usd_per_month": "12.5"}}).raise_for_status()
    own = {"prices": PRICES | {"input_nanos": 50}, "expires_at": later(1)}
    api.admin.post(f"{route}/price-overrides", json=own).raise_for_status()
    api.admin.put(f"{route}/plan", json={"plan": big["name"], "begins": "period_end"}).raise_for_status()
    seen = tenant.http.get("/api/v1/plan").json()
    assert (seen["own_limits"], seen["has_own_prices"]) == (["spend_nanos_per_month"], True)
    assert (seen["limits"]["spend_nanos_per_month"], seen["prices"]["input_nanos"]) == (12_500_000_000, 50)
    assert {each["prices"]["input_nanos"] for each in seen["changes"]} >= {7}
    assert seen["changes"][-1]["plan"] == big["name"]
