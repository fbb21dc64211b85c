"""Access control: every route without a key, with an invalid key, with the wrong kind of key, and with another
tenant's ids.
"""

import re

import pytest
from sqlalchemy import event

from core.api_keys import mint_key
from core.ids import new_id
from tests.fixtures.uploads.peft_adapters import declared_files, write_adapter


def routes(api) -> list[tuple[str, str]]:
    """Every (method, path template) in the OpenAPI document except the health routes."""
    paths = api.anyone.get("/schema").raise_for_status().json()["paths"]
    return [
        (method.upper(), path)
        for path, operations in paths.items()
        for method in operations
        if path.startswith(("/api/", "/v1/")) and method in ("get", "post", "put", "patch", "delete")
    ]


def filled(path: str, **values: str) -> str:
    whole_numbers = {"change_id": "1", "number": "1"}
    return re.sub(r"\{(\w+)\}", lambda match: (whole_numbers | values).get(match[1], "none"), path)


def test_every_route_requires_a_key(api):
    found = routes(api)
    assert len(found) >= 30
    for method, path in found:
        response = api.anyone.request(method, filled(path), json={})
        assert (response.status_code, response.json()["code"]) == (401, "missing_api_key"), (method, path)
        assert response.headers["www-authenticate"].startswith("Bearer")


def test_admin_keys_and_tenant_keys_do_not_mix(api):
    tenant = api.tenant()
    for method, path in routes(api):
        admin_route = path.startswith("/api/v1/admin/")
        wrong = tenant.http if admin_route else api.admin
        response = wrong.request(method, filled(path), json={})
        code = "admin_key_required" if admin_route else "tenant_key_required"
        assert (response.status_code, response.json()["code"]) == (403, code), (method, path)
        assert "Use a" in response.json()["detail"]


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x y", "Basic dXNlcjpwYXNz", "Bearer ' OR 1=1 --", "Bearer " + "x" * 10_000, "Bearer sk-123"],
)
def test_an_invalid_key_is_refused(api, header):
    response = api.anyone.get("/api/v1/me", headers={"authorization": header})
    assert response.status_code == 401


def test_an_empty_header_beside_a_key_is_absent(api):
    headers = [("authorization", ""), ("authorization", f"Bearer {api.tenant().key}")]
    assert api.anyone.get("/api/v1/me", headers=headers).status_code == 200


def test_a_key_of_the_previous_pepper_is_valid_until_that_is_removed(api, engine):
    from control_plane.api_keys.service import find_principal
    from control_plane.auth.authenticate import Authenticator, Pepper
    from core.errors import Unauthenticated
    from tests.fixtures.control_plane.api import PEPPER

    tenant, old = api.tenant(), PEPPER.encode()

    def authenticate(pepper: Pepper):
        authenticator = Authenticator(engine=engine, pepper=pepper, find_principal=find_principal)
        return authenticator.authenticate(f"Bearer {tenant.key}")

    assert authenticate(Pepper(value=b"new", previous=old)).tenant_id == tenant.id
    with pytest.raises(Unauthenticated):
        authenticate(Pepper(value=b"new"))


def test_a_wrong_checksum_is_refused_without_a_lookup_and_an_unknown_key_with_one(settings, engine):
    from control_plane.api_keys.service import find_principal
    from control_plane.auth.authenticate import Authenticator, Pepper
    from core.errors import Unauthenticated

    asked = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))
    authenticator = Authenticator(engine=engine, pepper=Pepper(value=b"pepper"), find_principal=find_principal)
    key = mint_key("live")
    flipped = key[:-1] + ("0" if key[-1] != "0" else "1")
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(f"Bearer {flipped}")
    assert asked == []
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(f"Bearer {key}")
    assert len(asked) == 1


def test_no_route_shows_or_changes_another_tenants_data(api, base, tmp_path):
    ours, theirs = api.tenant(), api.tenant()
    theirs.adapter("secret-plans", base)
    files = declared_files(write_adapter(tmp_path / "a", base))
    revision = theirs.announce("secret-plans", files)
    before = {
        path: theirs.http.get(path).json()
        for path in ("/api/v1/adapters", "/api/v1/adapters/secret-plans/revisions", "/api/v1/api-keys", "/api/v1/me")
    }
    real = {"name": "secret-plans", "revision_id": revision["id"], "key_id": theirs.key_id, "tenant_id": theirs.id}
    absent = {"name": "none-such", "revision_id": new_id("rev"), "key_id": new_id("key"), "tenant_id": new_id("tn")}
    bodies = {
        "/api/v1/adapters/{name}/revisions": {"files": files},
        "/api/v1/adapters": {"name": "mine", "base_model": base.id},
        "/api/v1/notification-endpoints/{endpoint_id}/confirm": {"code": "000000"},
        "/api/v1/notification-endpoints/{endpoint_id}/replay": {"since": "2026-01-01T00:00:00Z"},
    }
    checked, leaks = 0, []
    for method, path in routes(api):
        if path.startswith(("/api/v1/admin/", "/api/v1/changes/")):  # a change's number says nothing of its tenant
            continue
        responses = []
        for values in (real, absent | {"invoice_id": "inv_none"}):
            response = ours.http.request(method, filled(path, **values), json=bodies.get(path, {}))
            responses.append(response)
            text = response.text
            if any(mark in text for mark in (theirs.id, revision["id"], theirs.key_id)):
                leaks.append((method, path, text))
        if "{" in path:
            checked += 1
            first, second = ({**each.json(), "request_id": ""} for each in responses)
            if responses[0].status_code != 404 or first != second:
                leaks.append((method, path, first, second))
    assert checked >= 8
    assert leaks == []
    assert {path: theirs.http.get(path).json() for path in before} == before


def test_an_unknown_route_is_a_404_without_a_key(api):
    response = api.anyone.get("/api/v1/nothing")
    assert (response.status_code, response.json()["code"]) == (404, "route_not_found")
