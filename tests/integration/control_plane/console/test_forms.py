"""What a form does: exactly what the API does, once, with what was typed kept where it is refused."""

import re

import pytest

from control_plane.members.roles import TENANT_ROLES
from tests.fixtures.control_plane.browser import PASSWORD, Browser, admin, join


@pytest.fixture
def owner(api):
    return join(api, api.tenant(), "owner")


def test_a_key_is_shown_once_and_revoked(owner, api):
    browser = owner.browser
    browser.open("/keys")
    assert dict(browser.form("Create key").fields)["expires_in_days:int"] == "90"
    browser.send("Create key", name="ticket-prod")
    secret = re.search(r"tnr_live_\w+", browser.last.text)[0]
    assert api.client(secret).get("/api/v1/me").json()["scopes"] == ["inference"]
    assert "OPENAI_API_KEY" in browser.text
    assert browser.last.headers["cache-control"] == "no-store"
    assert secret not in browser.open("/keys").text
    browser.send("Rotate key", overlap="1h")
    assert secret != re.search(r"tnr_live_\w+", browser.last.text)[0]
    assert "the one before it ends" in browser.open("/keys").text
    browser.send("Revoke key")
    assert "Key revoked" in browser.text
    assert api.client(secret).get("/api/v1/me").status_code == 401


def test_a_form_that_is_sent_twice_has_one_effect(owner):
    browser = owner.browser
    browser.open("/keys")
    form = browser.form("Create key")
    fields = [(name, "twice" if name == "name" else value) for name, value in form.fields]
    browser.post(form.action, fields)
    browser.post(form.action, fields)
    assert "replay" in browser.text or browser.last.status_code == 200
    assert browser.open("/keys").text.count("<bdi>twice</bdi>") == 1


def test_a_refused_form_keeps_what_was_typed_and_names_the_field(owner):
    browser = owner.browser
    browser.open("/adapters")
    answer = browser.send("Create adapter", name="Not A Name", base_model="nothing")
    assert answer.status_code == 400
    assert dict(browser.form("Create adapter").fields)["name"] == "Not A Name"
    assert 'aria-invalid="true"' in answer.text


def test_a_form_that_was_refused_twice_keeps_its_page_and_can_be_sent_again(owner):
    browser = owner.browser
    browser.open("/keys")
    for name in ("x" * 200, "y" * 200):
        assert browser.send("Create key", name=name).status_code == 400
    assert dict(browser.form("Create key").fields)["name"] == "y" * 200
    browser.send("Create key", name="short")
    assert "tnr_live_" in browser.last.text


def test_a_change_that_matters_asks_for_the_password_again(owner, engine):
    browser = owner.browser
    browser.open("/keys")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE console_sessions SET confirmed_at = now() - interval '1 hour'")
    browser.send("Create key", name="later")
    assert "Your password, please" in browser.text
    assert browser.send("Go on", _password="a wrong one").status_code == 403
    browser.send("Go on", _password=PASSWORD)
    assert "tnr_live_" in browser.last.text
    browser.open("/keys")
    browser.send("Create key", name="soon after")
    assert "tnr_live_" in browser.last.text


def test_a_form_reaches_nothing_but_changes_of_the_api(owner):
    for path in ("/do/schema", "/do/v1/chat/completions", "/do/api/v1x/keys"):
        assert owner.browser.post(path, [("_back", "/keys")]).status_code == 404
    assert owner.browser.post("/do/api/v1/admin/plans", [("name", "x")]).status_code == 403
    assert owner.browser.post("/do/api/v1/api-keys", [("_method", "TRACE")]).status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        [("name:json", "{")],
        [("a..b", "x")],
        [("limits:int", "1"), ("limits.kv_pages:int", "2")],
        [("name", "a\0b")],
        [("limits.kv_pages:int", "many")],
        [(f"f{number}", "x") for number in range(600)],
    ],
    ids=["json", "path", "twice", "nul", "number", "fields"],
)
def test_a_form_that_no_page_has_is_refused(owner, fields):
    assert owner.browser.post("/do/api/v1/api-keys", [("_back", "/keys"), *fields]).status_code == 400


def test_a_developer_cannot_do_what_only_owners_may(api):
    developer = join(api, api.tenant(), "developer")
    answer = developer.browser.post("/do/api/v1/invitations", [("_back", "/keys"), ("email", "x@example.com")])
    assert answer.status_code == 403


def test_an_admin_views_a_tenant_changes_nothing_there_and_both_logs_say_so(api):
    tenant = api.tenant()
    owner, operator = join(api, tenant, "owner"), admin(api)
    operator.browser.open(f"/admin/tenants/{tenant.id}")
    operator.browser.send("View as Acme")
    assert "Viewing Acme, read only" in operator.browser.text
    assert operator.browser.open("/keys").status_code == 200
    refused = operator.browser.post("/do/api/v1/api-keys", [("_back", "/keys"), ("name", "hers")])
    assert (refused.status_code, "change nothing" in operator.browser.text) == (403, True)
    operator.browser.open("/")
    operator.browser.send("End")
    assert operator.browser.last.url.path == f"/admin/tenants/{tenant.id}"
    owner.browser.open("/audit?action=tenant")
    assert "tenant.viewed" in owner.browser.text
    assert "tenant.view_ended" in owner.browser.text
    assert "usr_" not in owner.browser.last.text.split("tenant.viewed")[0].split("<tbody>")[1]


def test_support_reads_the_platform_and_changes_nothing(api):
    support = admin(api, "support")
    assert support.browser.open("/admin/tenants").status_code == 200
    refused = support.browser.post(
        "/do/api/v1/admin/tenants", [("name", "x"), ("plan", "y"), ("_back", "/admin/tenants")]
    )
    assert refused.status_code == 403


def test_a_platform_begins_with_its_console_alone(api):
    operator = admin(api).browser
    api.plan("starter")
    operator.open("/admin/tenants")
    operator.send("Make tenant", name="Acme", plan="starter")
    assert operator.last.url.path.startswith("/admin/tenants/tn_")
    operator.send("Join as owner")
    assert operator.open("/").status_code == 200
    assert "Get to your first answer" in operator.text


def test_a_member_of_two_tenants_switches_between_them(api):
    first, second = api.tenant(), api.tenant()
    person = join(api, first, "owner")
    link = api.admin.post(
        f"/api/v1/admin/tenants/{second.id}/invitations", json={"email": person.email, "role": "viewer"}
    ).json()["link"]
    browser = Browser(api)
    browser.open(link.removeprefix(api.url))
    assert browser.send("Accept", password="a wrong password").status_code == 401
    browser.open(link.removeprefix(api.url))
    browser.send("Accept", password=PASSWORD).raise_for_status()
    browser.open("/")
    browser.send("Acme (viewer)")
    assert browser.open("/keys").status_code == 403
    browser.open("/")
    browser.send("Acme (owner)")
    assert browser.open("/keys").status_code == 200


CHANGED_BY = {
    "api-keys": {"owner", "developer"},
    "spend-limits": {"owner", "developer"},
    "adapters": {"owner", "developer"},
    "model-groups": {"owner", "developer"},
    "notification-endpoints": {"owner", "developer"},
    "notification-deliveries": {"owner", "developer"},
    "billing": {"owner", "billing"},
    "billing-profile": {"owner", "billing"},
    "members": {"owner"},
    "invitations": {"owner"},
}
"""Who may change what, by the first part of a route's path below /api/v1."""


@pytest.mark.parametrize("role", TENANT_ROLES)
def test_a_role_changes_what_its_table_says_and_nothing_else(walk, people, role):
    changes = [
        (method.upper(), path)
        for path, methods in walk.document["paths"].items()
        for method in methods.keys() & {"post", "put", "patch", "delete"}
        if path.startswith("/api/v1/") and not path.startswith("/api/v1/admin/")
    ]
    changes += [("POST", "/api/v1/invitations"), ("PATCH", "/api/v1/members/{user_id}")]
    assert len(changes) > 20
    for method, path in changes:
        target = re.sub(r"{(\w+)}", "unknown", path)
        answer = people[role].browser.post(f"/do{target}", [("_method", method), ("_back", "/limits"), ("zz", "1")])
        may = role in CHANGED_BY[path.split("/")[3]]
        assert (answer.status_code == 403) != may, f"{role} {method} {path}: {answer.status_code}"


def test_of_two_people_who_edit_the_later_sees_both_versions_first(api):
    tenant, (first, second) = api.tenant(), (admin(api).browser, admin(api).browser)
    page = f"/admin/tenants/{tenant.id}"
    for browser in (first, second):
        browser.open(page)
    first.send("Change limits", limits__kv_pages_as_int="64")
    refused = second.send("Change limits", limits__kv_pages_as_int="32")
    assert (refused.status_code, "Somebody changed this meanwhile" in second.text) == (409, True)
    path = f"/api/v1/admin/tenants/{tenant.id}"
    assert api.admin.get(path).json()["limits"]["kv_pages"] == 64
    assert dict(second.form("Change limits").fields)["limits.kv_pages:int"] == "32"
    second.send("Change limits")
    assert api.admin.get(path).json()["limits"]["kv_pages"] == 32
