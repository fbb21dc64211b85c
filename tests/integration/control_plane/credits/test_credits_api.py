"""Credit through the API: what admins grant and take back, and what tenants see."""

import pytest

DOLLAR = 1_000_000_000


def path_of(tenant) -> str:
    return f"/api/v1/admin/tenants/{tenant.id}/credits"


def granted(api, tenant, **changes) -> dict:
    body = {"kind": "paid", "amount_nanos": 50 * DOLLAR} | changes
    return api.admin.post(path_of(tenant), json=body).raise_for_status().json()


def test_an_admin_grants_credit_and_the_tenant_sees_it(shared_api):
    tenant = shared_api.tenant()
    lot = granted(shared_api, tenant)
    gift = granted(shared_api, tenant, kind="promotional", amount_nanos=10 * DOLLAR, priority=0, reference="welcome")
    own = tenant.http.get("/api/v1/credits").raise_for_status().json()
    assert (own["balance_nanos"], own["paid_nanos"], own["promotional_nanos"]) == (
        60 * DOLLAR, 50 * DOLLAR, 10 * DOLLAR,
    )  # fmt: skip
    assert (own["pending_nanos"], own["uncovered_nanos"], own["burn_down"]) == (0, 0, [])
    assert [each["id"] for each in own["lots"]] == [gift["id"], lot["id"]]
    listed = shared_api.admin.get(path_of(tenant), params={"limit": 1}).json()
    assert [each["id"] for each in listed["data"]] == [gift["id"]]
    rest = shared_api.admin.get(path_of(tenant), params={"cursor": listed["next_cursor"]}).json()
    assert [each["id"] for each in rest["data"]] == [lot["id"]]
    entries = tenant.http.get("/api/v1/credits/entries").json()["data"]
    assert [(each["lot_id"], each["kind"], each["amount_nanos"]) for each in entries] == [
        (gift["id"], "grant", 10 * DOLLAR), (lot["id"], "grant", 50 * DOLLAR),
    ]  # fmt: skip


@pytest.mark.scenario(81)
def test_unspent_paid_credit_is_refunded_and_a_gift_is_voided(shared_api):
    tenant = shared_api.tenant()
    lot, gift = granted(shared_api, tenant), granted(shared_api, tenant, kind="promotional")
    too_much = shared_api.admin.post(
        f"{path_of(tenant)}/{lot['id']}/refund", json={"amount_nanos": 50 * DOLLAR + 10**7}
    )
    assert (too_much.status_code, too_much.json()["code"], too_much.json()["param"]) == (
        422, "refund_exceeds_unspent", "amount_nanos",
    )  # fmt: skip
    back = shared_api.admin.post(f"{path_of(tenant)}/{lot['id']}/refund", json={"amount_nanos": 20 * DOLLAR}).json()
    assert (back["balance_nanos"], back["refunded_nanos"]) == (30 * DOLLAR, 20 * DOLLAR)
    voided = shared_api.admin.post(f"{path_of(tenant)}/{gift['id']}/void").raise_for_status().json()
    assert (voided["balance_nanos"], voided["status"]) == (0, "used")
    again = shared_api.admin.post(f"{path_of(tenant)}/{gift['id']}/void")
    assert (again.status_code, again.json()["code"]) == (409, "credit_lot_used")
    assert tenant.http.get("/api/v1/credits").json()["balance_nanos"] == 30 * DOLLAR
