"""Every route of the OpenAPI document, on a platform that has one object of every kind: each write leaves a row in the
audit trail and says whether gateways act by it, lists come in pages, and no tenant reaches another one's objects. A new
write fails here until the walk calls it.
"""

import re

import pytest

from core.api_keys import ALL_SCOPES
from tests.fixtures.control_plane.every_write import ADMIN, OWN, Write
from tests.integration.control_plane.conftest import ANNOUNCED

WRITE_NOTHING = {("POST", f"{ADMIN}/plans/{{plan_id}}/simulations")}
FOR_GATEWAYS = {
    ("POST", f"{ADMIN}/base-models"),
    ("POST", f"{ADMIN}/pools"),
    ("PATCH", f"{ADMIN}/pools/{{pool}}"),
    ("PATCH", f"{ADMIN}/providers/{{provider}}"),
    ("POST", f"{ADMIN}/providers/{{provider}}/models"),
    ("PATCH", f"{ADMIN}/providers/{{provider}}/models/{{model}}"),
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
    ("PUT", f"{ADMIN}/cordons/{{kind}}/{{target}}"),
    ("DELETE", f"{ADMIN}/cordons/{{kind}}/{{target}}"),
    ("POST", f"{OWN}/api-keys"),
    ("POST", f"{OWN}/api-keys/{{key_id}}/rotate"),
    ("DELETE", f"{OWN}/api-keys/{{key_id}}"),
    ("POST", f"{OWN}/spend-limits"),
    ("DELETE", f"{OWN}/spend-limits/{{limit_id}}"),
    ("PUT", f"{OWN}/adapters/{{name}}/aliases/{{alias}}"),
    ("DELETE", f"{OWN}/adapters/{{name}}/aliases/{{alias}}"),
    ("PATCH", f"{OWN}/adapters/{{name}}"),
    ("DELETE", f"{OWN}/adapters/{{name}}"),
    *((method, f"{root}/model-groups/{{group}}") for method in ("PATCH", "DELETE") for root in (ADMIN, OWN)),
    *(("POST", f"{root}/model-groups") for root in (ADMIN, OWN)),
}
"""The writes that gateways or replicas act on at once. Others change what billing does, or what begins later."""


@pytest.fixture(scope="module")
def walked(walk) -> tuple[list[Write], dict]:
    """All writes, and the OpenAPI document."""
    return walk.writes, walk.document


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


MOVE_MONEY = {
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/credits"),
    ("POST", f"{ADMIN}/tenants/{{tenant_id}}/credits/{{lot_id}}/refund"),
    ("POST", f"{ADMIN}/invoices/{{invoice_id}}/payments"),
    ("POST", f"{ADMIN}/invoices/{{invoice_id}}/credit-notes"),
    ("POST", f"{OWN}/billing/top-ups"),
}


def test_a_write_that_is_sent_twice_with_one_key_is_one(walked):
    """The second answer names the first one's object, and the audit trail shows one effect."""
    writes, _ = walked
    repeated = [each for each in writes if each.again is not None]
    assert {each.operation for each in repeated} >= MOVE_MONEY
    for each in repeated:
        assert each.again.is_success, each.operation
        assert each.again.headers.get("idempotent-replayed") == "true", each.operation
        assert each.again.json().get("id") == each.body.get("id"), each.operation
        assert each.audited_again == [], each.operation


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
    f"{OWN}/model-groups": {"name": "new", "rule": "weighted", "members": [{"model": "tiny-instruct"}]},
    f"{OWN}/notification-endpoints/{{endpoint_id}}/confirm": {"code": "000000"},
    f"{OWN}/notification-endpoints/{{endpoint_id}}/replay": {"since": "2026-01-01T00:00:00Z"},
}
"""Those that are valid whatever is there, so that a route looks for its object."""
OF_EVERY_KEY = {("GET", f"{OWN}/me"), ("GET", f"{OWN}/quota")}
READING = [each for each in ALL_SCOPES if each.endswith(":read")]
OF_WRITERS = {
    ("GET", f"{OWN}/adapters/{{name}}/revisions/{{revision_id}}/uploads"),
    ("GET", f"{OWN}/api-keys"),
    ("GET", f"{OWN}/api-keys/{{key_id}}"),
}
"""They read, and need a scope to write: the URLs of an upload, and the keys."""


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


def test_a_foreign_cursor_or_filter_shows_nothing_of_its_tenant(walk, walked, existing):
    ours, (_, document), tried = walk.api.tenant("walked").http, walked, set()
    for path in (path for method, path in of_tenants(document) if method == "GET" and "{" not in path):
        parameters = {each["name"] for each in document["paths"][path]["get"].get("parameters", ())}
        for name in parameters & existing.keys():
            found = ours.get(path, params={name: existing[name][0]})
            assert found.status_code == 404 or found.json()["data"] == [], (path, name, found.text)
            tried.add((path, name))
        if "cursor" in parameters:
            cursor = walk.tenant.http.get(path, params={"limit": 1}).raise_for_status().json()["next_cursor"]
            if cursor is not None:
                own = ours.get(path).raise_for_status().json()["data"]
                found = ours.get(path, params={"cursor": cursor}).raise_for_status().json()["data"]
                assert all(row in own for row in found), (path, found)
                tried.add((path, "cursor"))
    assert tried > {(f"{OWN}/audit-events", "cursor"), (f"{OWN}/notification-deliveries", "endpoint_id")}


def test_an_admin_finds_no_object_of_a_tenant_under_another_one(walk, walked, existing):
    (_, document), other = walked, existing | {"tenant_id": [walk.api.tenant("walked").id]}
    codes = {}
    for path, operations in document["paths"].items():
        if path.startswith(f"{ADMIN}/tenants/{{tenant_id}}/") and path.count("{") > 1:
            for method in operations:
                answer = walk.api.admin.request(method, filled(path, other), json={"amount_nanos": 10**9})
                codes[method, path.removeprefix(f"{ADMIN}/tenants/{{tenant_id}}/")] = answer.json().get("code")
    assert codes == {
        ("get", "credits/{lot_id}"): "credit_lot_not_found",
        ("post", "credits/{lot_id}/refund"): "credit_lot_not_found",
        ("post", "credits/{lot_id}/void"): "credit_lot_not_found",
        ("post", "discounts/{discount_id}/end"): "discount_not_found",
        ("get", "requests/{request_id}"): "request_not_found",
    }


@pytest.mark.parametrize("scopes", [["inference"], READING], ids=["inference", "reading"])
def test_a_key_calls_no_route_outside_its_scopes(walk, walked, existing, scopes):
    """Scopes to read change nothing, even all of them together."""
    made = walk.tenant.http.post(f"{OWN}/api-keys", json={"scopes": scopes}).json()
    narrow, (_, document) = walk.api.client(made["key"]), walked
    answers = {
        (method, path): narrow.request(method, filled(path, existing), json=BODIES.get(path, {}))
        for method, path in of_tenants(document)
    }
    allowed = {
        route for route, answer in answers.items() if answer.is_success or answer.json()["code"] != "scope_missing"
    }
    batches = {route for route in answers if route[1].startswith(("/v1/files", "/v1/batch"))}
    reads = {route for route in answers if route[0] == "GET"} - OF_WRITERS - batches
    assert allowed == (OF_EVERY_KEY | batches if scopes == ["inference"] else reads), allowed


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
