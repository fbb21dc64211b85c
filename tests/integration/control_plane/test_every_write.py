"""Every write of the OpenAPI document: each leaves a row in the audit trail, and what gateways act on says whether
every gateway acts by it. A new route fails here until the walk calls it.
"""

import pytest

from tests.fixtures.control_plane.every_write import ADMIN, OWN, Write

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
