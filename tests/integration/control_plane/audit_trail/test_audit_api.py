"""The audit trail through the API: filtered and paged, all of it for admins, and for a tenant what is about itself."""

from datetime import timedelta

import pytest

from core import clock

ADMIN, OWN = "/api/v1/admin/audit-events", "/api/v1/audit-events"


def pages(http, path, **params) -> list[dict]:
    """All rows, from pages of two."""
    found, cursor = [], {}
    while True:
        page = http.get(path, params=params | cursor | {"limit": 2}).raise_for_status().json()
        assert len(page["data"]) <= 2
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def done(rows) -> list[tuple[str, str]]:
    return [(row["action"], row["target"]) for row in rows]


@pytest.fixture
def busy(api):
    """A tenant whose limits an admin has changed and which has made and revoked a key, beside another tenant."""
    tenant, other = api.tenant(), api.tenant()
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"output_tokens": 7}}).raise_for_status()
    made = tenant.http.post("/api/v1/api-keys", json={"name": "second"}).raise_for_status().json()
    tenant.http.delete(f"/api/v1/api-keys/{made['id']}").raise_for_status()
    other.http.post("/api/v1/api-keys", json={"name": "theirs"}).raise_for_status()
    return tenant, other, made["id"]


def test_an_admin_reads_every_row_newest_first_in_pages(api, busy):
    tenant, other, key_id = busy
    rows = pages(api.admin, ADMIN)
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    assert {row["tenant_id"] for row in rows} == {tenant.id, other.id, None}, "plans and admin keys are of no tenant"
    changed = next(row for row in rows if row["action"] == "tenant.changed")
    assert (changed["target"], changed["details"]) == (tenant.id, {"limits": {"output_tokens": 7}})
    assert done(pages(api.admin, ADMIN, tenant_id=tenant.id, actor=tenant.key_id)) == [
        ("api_key.revoked", key_id),
        ("api_key.created", key_id),
    ]


def test_each_filter_narrows_the_rows(api, busy):
    tenant, other, key_id = busy
    assert {row["target"] for row in pages(api.admin, ADMIN, action="tenant.created")} == {tenant.id, other.id}
    of_keys = {row["action"] for row in pages(api.admin, ADMIN, action="api_key")}
    assert of_keys == {"api_key.created", "api_key.revoked"}
    assert pages(api.admin, ADMIN, action="api") == [], "a part of a word is no kind"
    assert len(pages(api.admin, ADMIN, target=key_id)) == 2
    assert pages(api.admin, ADMIN, target=key_id, actor=other.key_id) == []
    now = clock.now()
    before, after = (now - timedelta(hours=1)).isoformat(), (now + timedelta(hours=1)).isoformat()
    assert pages(api.admin, ADMIN, start=before, end=after) == pages(api.admin, ADMIN)
    assert pages(api.admin, ADMIN, start=after) == pages(api.admin, ADMIN, end=before) == []


def test_a_tenant_sees_what_is_about_it_and_neither_an_admins_key_nor_its_details(api, busy):
    tenant, other, key_id = busy
    rows = pages(tenant.http, OWN)
    assert [(row["action"], row["actor"], row["details"] == {}) for row in rows] == [
        ("api_key.revoked", tenant.key_id, True),
        ("api_key.created", tenant.key_id, False),
        ("tenant.changed", "admin", True),
        ("api_key.created", "admin", True),
        ("tenant.created", "admin", True),
    ]
    assert {row["tenant_id"] for row in rows} == {tenant.id}
    assert done(pages(tenant.http, OWN, actor=tenant.key_id, action="api_key.revoked")) == [("api_key.revoked", key_id)]
    assert len(pages(tenant.http, OWN, actor="admin")) == 3
    admin_key = next(row["actor"] for row in pages(api.admin, ADMIN, action="tenant.changed"))
    for foreign in ({"actor": admin_key}, {"actor": other.key_id}, {"target": other.id}, {"target": other.key_id}):
        assert pages(tenant.http, OWN, **foreign) == []
    assert tenant.http.get(OWN, params={"tenant_id": other.id}).json()["code"] == "unknown_parameter"


def test_the_tenants_trail_needs_its_own_scope_and_is_there_while_suspended(api):
    tenant = api.tenant()

    def reader(*scopes):
        made = tenant.http.post("/api/v1/api-keys", json={"scopes": scopes}).raise_for_status().json()
        return api.client(made["key"])

    allowed, others = reader("audit:read"), reader("inference", "keys:write", "usage:read", "billing:read")
    assert others.get(OWN).json()["code"] == "scope_missing"
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended"}).raise_for_status()
    assert pages(allowed, OWN)[0]["action"] == "tenant.changed"
