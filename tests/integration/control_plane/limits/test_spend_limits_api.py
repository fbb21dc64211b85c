"""Hard limits that a tenant sets on itself, and what gateways get of them."""

DOLLAR = 1_000_000_000
LIMITS = "/api/v1/spend-limits"


def test_a_tenant_limits_itself_a_key_and_an_adapter(api, base, grant):
    tenant = api.tenant()
    adapter = tenant.adapter("support-bot", base)
    bodies = [
        {"scope": "tenant", "window": "month", "amount_nanos": 10 * DOLLAR},
        {"scope": "key", "window": "day", "amount_nanos": DOLLAR, "subject_id": tenant.key_id},
        {"scope": "adapter", "window": "day", "amount_nanos": 2 * DOLLAR, "subject_id": adapter["id"]},
    ]
    made = [tenant.http.post(LIMITS, json=body).raise_for_status().json() for body in bodies]
    assert [each["spent_nanos"] for each in made] == [0, 0, 0]
    published = grant(tenant).spend_limits
    assert [(each.scope, each.window, each.subject_id, each.amount_nanos) for each in published] == [
        ("tenant", "month", "", 10 * DOLLAR),
        ("key", "day", tenant.key_id, DOLLAR),
        ("adapter", "day", adapter["id"], 2 * DOLLAR),
    ]
    tenant.http.delete(f"{LIMITS}/{made[0]['id']}").raise_for_status()
    assert [each["id"] for each in tenant.http.get(LIMITS).json()["data"]] == [made[1]["id"], made[2]["id"]]
    assert len(grant(tenant).spend_limits) == 2


def test_another_tenants_key_cannot_be_limited_and_its_limit_cannot_be_seen(shared_api):
    ours, theirs = shared_api.tenant(), shared_api.tenant()
    body = {"scope": "key", "window": "day", "amount_nanos": 1, "subject_id": theirs.key_id}
    limit = theirs.http.post(LIMITS, json=body).raise_for_status().json()
    assert ours.http.post(LIMITS, json=body).json()["param"] == "subject_id"
    gone = ours.http.delete(f"{LIMITS}/{limit['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "spend_limit_not_found")
