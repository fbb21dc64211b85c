"""Admins find tenants: by text, sorted by name, cost and limits, with each tenant's keys, usage and adapters."""

import pytest
import sqlalchemy as sa

from control_plane.dollars import with_dollars
from core.ids import new_id

ROOT = "/api/v1/admin/tenants"
_USED = sa.text(
    "INSERT INTO usage_months (tenant_id, month, key_id, input_tokens, cached_tokens, output_tokens, amount_nanos)"
    " VALUES (:tenant, date_trunc('month', now(), 'UTC'), 'key_1', :tokens, 0, 0, :nanos)"
)
_HOUR = "(extract(epoch FROM now())::bigint / 3600 * 3600000)"
_COST_HOUR = sa.text(
    "INSERT INTO cost_hours (replica_id, hour_ms, base_model, rank_max, pool, charge, carry_in, carry, total_nanos,"
    f" paid_ms, busy_ms, created_at) VALUES (:replica, {_HOUR}, 'm', 16, '', :nanos * 3600000::bigint, 0, 0, :nanos,"
    " 1, 0, now())"
)
_COST_ROW = sa.text(
    "INSERT INTO cost_rows (replica_id, hour_ms, tenant_id, adapter_id, plan_id, kind, nanos)"
    f" VALUES (:replica, {_HOUR}, :tenant, '', '', 'requests', :nanos)"
)
_ENDPOINT = sa.text(
    "INSERT INTO notification_endpoints (id, tenant_id, kind, address, event_types, status, created_at, updated_at)"
    " VALUES (:id, :tenant, 'email', :address, '{}', 'active', now(), now())"
)


@pytest.fixture
def named(api, engine):
    """Tenants by their first letter. Their month: tokens of 10,000, then nanodollars charged and costs."""
    plan = api.plan(limits={"tokens_per_month": 10_000})["name"]
    months = {"Zeta": (9_000, 1, 10), "alpha": (100, 30, 30), "Beta_1": (0, 50, 0), "Gamma": (5_000, 2, 20)}
    found = {}
    with engine.begin() as connection:
        for name, (tokens, charged, cost) in months.items():
            made = api.admin.post(ROOT, json={"name": name, "plan": plan}).raise_for_status().json()
            tenant = found[name[0]] = made["id"]
            connection.execute(_USED, {"tenant": tenant, "tokens": tokens, "nanos": charged})
            if cost:
                owned = {"replica": f"rep_{name}", "tenant": tenant, "nanos": cost}
                connection.execute(_COST_HOUR, owned)
                connection.execute(_COST_ROW, owned)
        connection.execute(_ENDPOINT, {"id": new_id("nep"), "tenant": found["G"], "address": "ops@gamma-rays.example"})
    profile = {"legal_name": "Alpha Centauri Inc", "email": "100%.billing@centauri.example", "country": "US"}
    api.admin.put(f"{ROOT}/{found['a']}/billing-profile", json=profile | {"legal_name": "Old Ltd"}).raise_for_status()
    api.admin.put(f"{ROOT}/{found['a']}/billing-profile", json=profile).raise_for_status()
    return found


def listed(api, **params) -> str:
    """The first letters of the tenants on pages of two."""
    names, cursor = [], {}
    while True:
        page = api.admin.get(ROOT, params=params | cursor | {"limit": 2}).raise_for_status().json()
        names += [tenant["name"] for tenant in page["data"]]
        if page["next_cursor"] is None:
            return "".join(name[0] for name in names)
        cursor = {"cursor": page["next_cursor"]}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, "GBaZ"),
        ({"sort": "created"}, "GBaZ"),
        ({"sort": "name"}, "aBGZ"),
        ({"sort": "cost"}, "aGZB"),
        ({"sort": "near_limit"}, "ZGaB"),
        ({"search": "ETA"}, "BZ"),
        ({"search": "eta", "sort": "near_limit"}, "ZB"),
        ({"search": "_"}, "B"),
        ({"search": "100%.b"}, "a"),
        ({"search": "centauri"}, "a"),
        ({"search": "Old Ltd"}, ""),
        ({"search": "OPS@gamma"}, "G"),
        ({"search": "nobody"}, ""),
        ({"search": ""}, "GBaZ"),
    ],
)
def test_tenants_are_searched_and_sorted_over_all_pages(api, named, params, expected):
    assert listed(api, **params) == expected


def test_a_listed_tenant_shows_its_month(api, named):
    (gamma,) = api.admin.get(ROOT, params={"search": named["G"]}).json()["data"]
    assert gamma["id"] == named["G"]
    month = {"tokens": 5_000, "charged_nanos": 2, "cost_nanos": 20, "limit_used_ppm": 500_000}
    assert gamma["this_month"] == with_dollars(month)


def test_an_admin_lists_a_tenants_keys_usage_and_adapters_and_no_other_tenants(api, base):
    tenant, other = api.tenant(), api.tenant()
    made = tenant.adapter("router", base)
    other.adapter("theirs", base)
    path = f"{ROOT}/{tenant.id}"
    keys, adapters = (api.admin.get(f"{path}/{name}").raise_for_status().json() for name in ("api-keys", "adapters"))
    assert [key["id"] for key in keys["data"]] == [tenant.key_id]
    assert "key" not in keys["data"][0], "the secret was shown once"
    assert [adapter["id"] for adapter in adapters["data"]] == [made["id"]]
    asked = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z", "group_by": "adapter"}
    assert api.admin.get(f"{path}/usage", params=asked).json() == tenant.http.get("/api/v1/usage", params=asked).json()


@pytest.mark.parametrize("name", ["api-keys", "adapters", "usage"])
def test_a_tenant_that_does_not_exist_has_no_lists(shared_api, name):
    absent = shared_api.admin.get(f"{ROOT}/{new_id('tn')}/{name}")
    assert (absent.status_code, absent.json()["code"]) == (404, "tenant_not_found")
