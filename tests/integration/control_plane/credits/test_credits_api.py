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


@pytest.mark.scenario(79)
def test_the_same_idempotency_key_or_reference_grants_once(shared_api):
    tenant = shared_api.tenant()
    body = {"kind": "paid", "amount_nanos": 25 * DOLLAR, "reference": "wire-7"}
    sent = [
        shared_api.admin.post(path_of(tenant), json=body, headers={"idempotency-key": key})
        for key in ("top-up-1", "top-up-1", "top-up-2")
    ]
    assert [each.status_code for each in sent] == [201, 201, 201]
    assert len({each.json()["id"] for each in sent}) == 1
    assert tenant.http.get("/api/v1/credits").json()["balance_nanos"] == 25 * DOLLAR


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


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"amount_nanos": 12_345}, "amount_nanos"),
        ({"models": ["no-such-model"]}, "models"),
        ({"effective_from": "2030-01-01T00:00:00"}, "effective_from"),
        ({"reference": "stripe:pi_1"}, "reference"),
    ],
)
def test_an_impossible_grant_is_refused_with_its_field_and_changes_nothing(shared_api, change, param):
    tenant = shared_api.tenant()
    refused = shared_api.admin.post(path_of(tenant), json={"kind": "paid", "amount_nanos": DOLLAR} | change)
    assert refused.status_code == 400, refused.text
    assert refused.json()["param"] == param
    assert tenant.http.get("/api/v1/credits").json()["lots"] == []


def test_credit_of_an_unknown_tenant_or_of_another_one_is_not_found(shared_api):
    ours, theirs = shared_api.tenant(), shared_api.tenant()
    lot = granted(shared_api, theirs)
    unknown = shared_api.admin.post(
        "/api/v1/admin/tenants/tn_none/credits", json={"kind": "paid", "amount_nanos": DOLLAR}
    )
    assert (unknown.status_code, unknown.json()["code"]) == (404, "tenant_not_found")
    wrong = shared_api.admin.get(f"{path_of(ours)}/{lot['id']}")
    assert (wrong.status_code, wrong.json()["code"]) == (404, "credit_lot_not_found")
    assert ours.http.get("/api/v1/credits/entries").json()["data"] == []
