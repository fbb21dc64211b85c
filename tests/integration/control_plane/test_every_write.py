"""Every route of the OpenAPI document, on a platform that has one object of every kind: each write leaves a row in the
audit trail and says whether gateways act by it, lists come in pages, and no tenant reaches another one's objects. A new
write fails here until the walk calls it.
"""

import re

import pytest

from tests.fixtures.control_plane.every_write import ADMIN, OWN, Write
from tests.integration.control_plane.conftest import ANNOUNCED

WRITE_NOTHING = {("POST", f"{ADMIN}/plans/{{plan_id}}/simulations")}
FOR_GATEWAYS = {
    ("POST", f"{ADMIN}/base-models"),
    ("POST", f"{ADMIN}/plans/{{plan_id}}/versions"),
    ("POST", f"{ADMIN}/plans/{{plan_id}}/drafts/{{draft_id}}/publish"),
    ("POST", f"{ADMIN}/tenants"),
    ("PATCH", f"{ADMIN}/tenants/{{tenant_id}}"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/api-keys"),
    ("PUT", f"{ADMIN}/tenants/{{tenant_id}}/plan"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/price-overrides"),
    ("DELETE", f"{ADMIN}/tenants/{{tenant_id}}/price-overrides"),
    ("PATCH", f"{ADMIN}/tenants/{{tenant_id}}/spending"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/credits"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/credits/{{lot_id}}/refund"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/credits/{{lot_id}}/void"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/close"),
    ("POST", f"{OWN}/api-keys"),
    ("DELETE", f"{OWN}/api-keys/{{key_id}}"),
    ("POST", f"{OWN}/spend-limits"),
    ("DELETE", f"{OWN}/spend-limits/{{limit_id}}"),
    ("PUT", f"{OWN}/adapters/{{name}}/aliases/{{alias}}"),
    ("DELETE", f"{OWN}/adapters/{{name}}/aliases/{{alias}}"),
    ("PATCH", f"{OWN}/adapters/{{name}}"),
    ("DELETE", f"{OWN}/adapters/{{name}}"),
}
"""The writes that gateways act on at once. Others change what billing does, or what begins later."""


@pytest.fixture(scope="module")
def walked(walk) -> tuple[list[Write], dict]:
    """All writes, and the OpenAPI document."""
    return walk.writes, walk.api.anyone.get("/schema/openapi.json", timeout=60).raise_for_status().json()


def test_the_walk_calls_every_write_of_the_document(walked):
    writes, document = walked
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations.keys() & {"post", "put", "patch", "delete"}
    }
    assert {each.operation for each in writes} == described - WRITE_NOTHING


def test_every_write_is_in_the_audit_trail_with_the_key_that_asked_for_it(walked):
    writes, _ = walked
    silent = {each.operation for each in writes if each.caller not in {actor for actor, _ in each.audited}}
    assert silent == set()


def test_the_audit_trail_shows_every_write_and_no_secret(walk):
    rows, cursor = [], None
    while cursor is not None or not rows:
        at = {"cursor": cursor} if cursor else {}
        page = walk.api.admin.get(f"{ADMIN}/audit-events", params=at | {"limit": 200})
        rows, cursor = rows + page.raise_for_status().json()["data"], page.json()["next_cursor"]
    assert {row["action"] for row in rows} >= {action for each in walk.writes for _, action in each.audited}
    shown = {value for each in walk.writes for name in ("key", "secret") if (value := each.body.get(name))}
    assert len(shown) >= 3, "the walk makes keys and signing secrets"
    assert not any(secret in str(rows) for secret in {*shown, walk.tenant.key, walk.api.admin_secret})


def test_without_a_worker_every_change_for_gateways_says_that_it_is_not_in_force(walked):
    writes, _ = walked
    unacknowledged = {each.operation for each in writes if each.body.get("acknowledged") is False}
    assert unacknowledged == FOR_GATEWAYS
    for each in writes:
        if each.operation in FOR_GATEWAYS:
            assert each.answer.status_code == 202, each.operation
            root = ADMIN if each.operation[1].startswith(ADMIN) else OWN
            assert each.body["poll_url"].startswith(f"{root}/changes/"), each.operation


BODIES = {
    f"{OWN}/adapters": {"name": "new", "base_model": "tiny-instruct"},
    f"{OWN}/adapters/{{name}}/revisions": {"files": ANNOUNCED},
    f"{OWN}/notification-endpoints/{{endpoint_id}}/confirm": {"code": "000000"},
    f"{OWN}/notification-endpoints/{{endpoint_id}}/replay": {"since": "2026-01-01T00:00:00Z"},
}
"""Those that are valid whatever is there, so that a route looks for its object."""
OF_INFERENCE = {("GET", f"{OWN}/me"), ("GET", f"{OWN}/quota")}


def of_tenants(document: dict) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if path.startswith((f"{OWN}/", "/v1/")) and not path.startswith((f"{ADMIN}/", f"{OWN}/changes/"))
    ]


def filled(path: str, existing: dict, at: int = 0) -> str:
    return re.sub(r"{(\w+)}", lambda found: str(existing[found[1]][at % len(existing[found[1]])]), path)


def test_no_route_shows_or_changes_another_tenants_data(walk, walked, existing):
    """The ids of what another tenant has, of every kind, are answered as ids that never were. A change's number says
    nothing of its tenant.
    """
    ours, _, document = walk.api.tenant("walked"), *walked
    shown = [f"{OWN}/{each}" for each in ("adapters", "api-keys", "me", "spend-limits", "invoices", "customer-balance")]
    before = [walk.tenant.http.get(path).json() for path in shown]
    shared = {"plan_id", "change_id", "replica_id"}
    theirs = {
        str(each) for name, ids in existing.items() if name.endswith("_id") and name not in shared for each in ids
    }
    absent = {
        name: ["none" if name in ("name", "alias") else f"{ids[0]}"[:4] + "none"] for name, ids in existing.items()
    }
    differing = []
    for method, path in of_tenants(document):
        for at in range(max([len(existing[name]) for name in re.findall(r"{(\w+)}", path)], default=1)):
            answers = [
                ours.http.request(method, filled(path, ids, at), json=BODIES.get(path, {}))
                for ids in (existing, absent)
            ]
            one, other = ({**each.json(), "request_id": ""} if "{" in path else {} for each in answers)
            named = {each for each in theirs if each in answers[0].text}
            if one != other or ("{" in path and answers[0].status_code != 404) or named:
                differing.append((method, path, one, other, named))
    assert differing == [], differing
    assert [walk.tenant.http.get(path).json() for path in shown] == before


def test_admin_keys_and_tenant_keys_do_not_mix(walk, walked):
    """Nor is any route open to callers without a key."""
    _, document = walked
    for path, operations in document["paths"].items():
        if not path.startswith(("/api/", "/v1/")):
            continue
        for method in operations:
            url, of_admins = re.sub(r"{\w+}", "1", path), path.startswith(f"{ADMIN}/")
            without = walk.api.anyone.request(method, url, json={})
            assert (without.status_code, without.json()["code"]) == (401, "missing_api_key"), (method, path)
            assert without.headers["www-authenticate"].startswith("Bearer")
            wrong = (walk.tenant.http if of_admins else walk.api.admin).request(method, url, json={})
            code = "admin_key_required" if of_admins else "tenant_key_required"
            assert (wrong.status_code, wrong.json()["code"]) == (403, code), (method, path)
            assert "Use a" in wrong.json()["detail"]


def test_a_key_calls_no_route_outside_its_scopes(walk, walked, existing):
    made = walk.tenant.http.post(f"{OWN}/api-keys", json={"scopes": ["inference"]}).json()
    narrow, (_, document) = walk.api.client(made["key"]), walked
    answers = {
        (method, path): narrow.request(method, filled(path, existing), json=BODIES.get(path, {}))
        for method, path in of_tenants(document)
    }
    allowed = {
        route for route, answer in answers.items() if answer.is_success or answer.json()["code"] != "scope_missing"
    }
    assert allowed == OF_INFERENCE, allowed


def test_the_pages_of_every_list_are_the_list(walk, walked, existing):
    _, document = walked
    lists = 0
    for path, operations in document["paths"].items():
        parameters = {each["name"] for each in operations.get("get", {}).get("parameters", ())}
        if not parameters >= {"limit", "cursor"}:
            continue
        http, url = walk.api.admin if path.startswith(ADMIN) else walk.tenant.http, filled(path, existing)
        whole = http.get(url).raise_for_status().json()["data"]
        found, cursor = [], {}
        for _ in range(3):
            page = http.get(url, params={"limit": 2} | cursor).raise_for_status().json()
            found += page["data"]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == whole[:6], path
        lists += len(found) > 2
    assert lists > 10, "lists of more than a page"
