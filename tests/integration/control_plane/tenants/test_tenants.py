"""Plans, tenants and keys through the API, as an admin and as a tenant."""

from control_plane.dollars import with_dollars
from tests.fixtures.control_plane.api import LIMITS, PRICES


def test_a_plan_has_limits_and_prices_and_its_newest_version_is_in_force(api):
    plan = api.plan("starter")
    assert (plan["version"], plan["limits"], plan["prices"]) == (1, with_dollars(LIMITS), with_dollars(PRICES))
    tenant = api.tenant("starter")
    changed = {"limits": LIMITS | {"adapters": 9}, "prices": PRICES | {"input_nanos": 0}}
    version = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/versions", json=changed)
    assert (version.status_code, version.json()["number"]) == (201, 2)
    assert api.admin.get("/api/v1/admin/plans").json()["data"][0]["limits"]["adapters"] == 9
    numbers = [each["number"] for each in api.admin.get(f"/api/v1/admin/plans/{plan['id']}/versions").json()["data"]]
    assert numbers == [2, 1]
    assert tenant.http.get("/api/v1/me").json()["tenant"]["limits"]["adapters"] == 9


def test_a_plan_name_is_unique(api):
    api.plan("starter")
    again = api.admin.post("/api/v1/admin/plans", json={"name": "starter", "limits": LIMITS, "prices": PRICES})
    assert (again.status_code, again.json()["code"], again.json()["param"]) == (409, "plan_exists", "name")


def test_a_tenant_is_put_on_a_plan_by_name_or_id(api):
    plan = api.plan("starter")
    for reference in ("starter", plan["id"]):
        made = api.admin.post("/api/v1/admin/tenants", json={"name": "Acme GmbH", "plan": reference})
        assert (made.status_code, made.json()["plan"]) == (201, "starter")
    wrong = api.admin.post("/api/v1/admin/tenants", json={"name": "Acme", "plan": "gold"})
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["param"]) == (400, "plan_not_found", "plan")


def test_an_admin_overrides_single_limits_and_removes_the_overrides(api):
    tenant = api.tenant()
    path = f"/api/v1/admin/tenants/{tenant.id}"
    changed = api.admin.patch(path, json={"limits": {"adapters": 1, "kv_pages": 64}}).json()
    assert (changed["limits"]["adapters"], changed["limits"]["kv_pages"]) == (1, 64)
    back = api.admin.patch(path, json={"limits": {"adapters": None}}).json()
    assert (back["limits"]["adapters"], back["limit_overrides"]) == (LIMITS["adapters"], {"kv_pages": 64})


def test_an_override_has_a_reason_that_admins_see_and_an_end_that_its_tenant_sees(api):
    tenant = api.tenant()
    path = f"/api/v1/admin/tenants/{tenant.id}"
    api.admin.patch(path, json={"limits": {"kv_pages": 64}, "limits_reason": "pilot"}).raise_for_status()
    ends = "2100-01-01T00:00:00Z"
    launch = {"limits": {"adapters": 9}, "limits_reason": "launch week", "limits_expire_at": ends}
    changed = api.admin.patch(path, json=launch).json()
    assert changed["limit_override_terms"] == {
        "adapters": {"reason": "launch week", "expires_at": ends},
        "kv_pages": {"reason": "pilot", "expires_at": None},
    }
    seen = tenant.http.get("/api/v1/me").json()["tenant"]["limit_override_terms"]
    assert seen["adapters"] == {"reason": None, "expires_at": ends}
    (coming,) = tenant.http.get("/api/v1/plan").json()["changes"]
    assert (coming["effective_from"], coming["limits"]["adapters"]) == (ends, LIMITS["adapters"])
    assert coming["limits"]["kv_pages"] == 64
    back = api.admin.patch(path, json={"limits": {"adapters": None}}).json()
    assert set(back["limit_override_terms"]) == {"kv_pages"}


def test_a_suspended_tenant_may_read_but_not_write(api):
    tenant = api.tenant()
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended"}).raise_for_status()
    for path in ("me", "quota", "usage", "invoices"):
        assert tenant.http.get(f"/api/v1/{path}").status_code == 200, path
    for response in (tenant.http.get("/api/v1/adapters"), tenant.http.post("/api/v1/api-keys", json={})):
        assert (response.status_code, response.json()["code"]) == (403, "tenant_suspended")
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "active"}).raise_for_status()
    assert tenant.http.get("/api/v1/adapters").status_code == 200


def test_a_key_is_shown_once_and_then_only_redacted(api):
    tenant = api.tenant()
    made = tenant.http.post("/api/v1/api-keys", json={"name": "ci", "scopes": ["usage:read"]}).json()
    assert made["key"].startswith("tnr_live_")
    listed = tenant.http.get("/api/v1/api-keys")
    assert made["key"] not in listed.text
    shown = next(key for key in listed.json()["data"] if key["id"] == made["id"])
    assert (shown["redacted"][-4:], shown["scopes"]) == (made["key"][-4:], ["usage:read"])
    assert made["key"] not in tenant.http.get(f"/api/v1/api-keys/{made['id']}").text


def test_a_key_is_limited_to_its_scopes_and_cannot_grant_others(api):
    tenant = api.tenant()
    scopes = ["keys:write", "usage:read"]
    narrow = api.client(tenant.http.post("/api/v1/api-keys", json={"scopes": scopes}).json()["key"])
    assert narrow.get("/api/v1/usage").status_code == 200
    refused = narrow.get("/api/v1/adapters")
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    more = narrow.post("/api/v1/api-keys", json={"scopes": ["inference"]})
    assert (more.status_code, more.json()["code"]) == (403, "scope_missing")
    assert narrow.post("/api/v1/api-keys", json={}).json()["scopes"] == scopes


def test_a_revoked_key_is_refused_and_stays_on_record(api):
    tenant = api.tenant()
    made = tenant.http.post("/api/v1/api-keys", json={}).json()
    caller = api.client(made["key"])
    assert caller.get("/api/v1/me").status_code == 200
    for _ in range(2):
        assert tenant.http.delete(f"/api/v1/api-keys/{made['id']}").status_code == 204
    assert caller.get("/api/v1/me").status_code == 401
    assert tenant.http.get(f"/api/v1/api-keys/{made['id']}").json()["revoked_at"]
