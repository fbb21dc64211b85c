"""Which keys are valid, and what it costs to find out. What a valid key reaches, the tests of every route show."""

import pytest
from sqlalchemy import event

from core.api_keys import mint_key


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


def test_an_unknown_route_is_a_404_without_a_key(api):
    response = api.anyone.get("/api/v1/nothing")
    assert (response.status_code, response.json()["code"]) == (404, "route_not_found")
