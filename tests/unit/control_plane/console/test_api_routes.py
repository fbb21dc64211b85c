"""The fields of forms, as they are read from the routes."""

from litestar import Litestar, Router
from litestar.di import Provide

from control_plane.api_keys.api import ApiKeys
from control_plane.console.api_routes import ApiRoutes
from control_plane.credits.api import AdminCredits


def operations():
    tenant = Router(path="/api/v1", route_handlers=[ApiKeys])
    admin = Router(path="/api/v1/admin", route_handlers=[AdminCredits])
    names = ("engine", "idempotent", "pepper", "principal", "web")
    held = {name: Provide(lambda: None, sync_to_thread=False) for name in names}
    return ApiRoutes(lambda: Litestar(route_handlers=[tenant, admin], dependencies=held)).operations


def test_a_form_asks_for_what_its_route_takes():
    found = {field.path: field for field in operations()["create_api_key"].fields}
    assert found["scopes"].kind == "list"
    assert "inference" in found["scopes"].choices
    assert found["limits.kv_pages"].name == "limits.kv_pages:int"
    assert not found["name"].required
    assert found["limits.spend_usd_per_month"].kind == "usd"


def test_amounts_are_asked_for_in_dollars():
    amount = next(field for field in operations()["grant_credit"].fields if field.kind == "usd")
    assert (amount.path, amount.label) == ("amount_usd", "Amount (US$)")
    assert "dollars" in amount.description
    assert "nano" not in amount.description


def test_a_path_is_filled_in_with_quoted_names():
    change = operations()["revoke_api_key"]
    assert (change.method, change.path_for({"key_id": "a/b c"})) == ("DELETE", "/api/v1/api-keys/a%2Fb%20c")
