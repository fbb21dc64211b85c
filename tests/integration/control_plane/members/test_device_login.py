"""A command gets a key by a code that a person confirms, once; and nothing without it."""

import re

import pytest

from control_plane.members import device_login
from control_plane.members.roles import SCOPES
from control_plane.settings import ConsoleSettings, WebSettings
from core.db import unit_of_work
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.control_plane.browser import PASSWORD, admin, join

ASK, POLL, TYPE = "/device-authorizations", "/device-authorizations/poll", "/do/api/v1/device-authorizations"


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return control_settings(
        postgres_settings,
        redis_settings,
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        console=ConsoleSettings(sign_in_failures_max=3, login_codes_max=4, login_codes_per_address_max=None),
    )


@pytest.fixture
def asked(api) -> dict:
    """The codes of a command that waits."""
    return api.anyone.post(ASK, json={"label": "laptop"}).raise_for_status().json()


@pytest.fixture
def change(engine):
    """Change all rows of device_authorizations."""

    def run(assignment: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE device_authorizations SET {assignment}")

    return run


@pytest.fixture
def poll(api, change):
    """Poll as the command does after its pause."""

    def after_the_pause(asked: dict):
        change("polled_at = NULL")
        return api.anyone.post(POLL, json={"device_code": asked["device_code"]})

    return after_the_pause


def type_code(browser, code: str):
    browser.open("/login-code")
    return browser.send("Go on", code=code)


def test_a_confirmed_code_gives_the_command_one_key_of_the_persons_role(api, asked, poll, engine):
    browser = join(api, api.tenant(), "developer").browser
    assert poll(asked).json()["key"] is None
    assert re.fullmatch("[B-DF-HJ-NP-TV-XZ]{4}-[B-DF-HJ-NP-TV-XZ]{4}", asked["code"])
    type_code(browser, asked["code"].lower().replace("-", " ")).raise_for_status()
    for shown in (asked["code"], "laptop", "127.0.0.1", "Acme", "adapters:write"):
        assert shown in browser.text
    assert poll(asked).json()["key"] is None, "it is typed and not confirmed"
    assert browser.send("Confirm").url.path == "/keys"
    made = poll(asked).json()
    assert (made["tenant"], made["gateway_url"]) == ("Acme", "http://127.0.0.1:8080")
    me = api.client(made["key"]["key"]).get("/api/v1/me").json()
    assert set(me["scopes"]) == SCOPES["developer"] - {"logins:write"}
    assert "tenora login on laptop" in (browser.open("/keys"), browser.text)[1]
    assert poll(asked).status_code == 404
    assert type_code(browser, asked["code"]).status_code == 404
    with engine.connect() as connection:
        actor = connection.exec_driver_sql(
            f"SELECT actor FROM audit_events WHERE target = '{made['key']['id']}'"
        ).scalar_one()
    assert actor.startswith("usr_")


def test_postgres_has_neither_code(api, asked, engine):
    with engine.connect() as connection:
        (row,) = connection.exec_driver_sql("SELECT d::text FROM device_authorizations d").scalars()
    assert asked["code"].replace("-", "") not in row
    assert asked["device_code"] not in row


def test_a_code_is_of_the_person_who_typed_it_first(api, asked, poll):
    tenant = api.tenant()
    first, second = (join(api, tenant, "owner").browser for _ in range(2))
    type_code(first, asked["code"]).raise_for_status()
    path = first.last.url.path
    assert type_code(second, asked["code"]).status_code == 404
    assert second.open(path).status_code == 404
    second.post(f"{TYPE}/{asked['code']}/confirm", [("_back", "/login-code")])
    assert second.last.status_code == 404
    assert poll(asked).json()["key"] is None
    assert first.open(path).status_code == 200


def test_an_expired_code_is_as_unknown_as_any_other(api, asked, poll, change):
    browser = join(api, api.tenant(), "owner").browser
    type_code(browser, asked["code"]).raise_for_status()
    change("expires_at = now()")
    expired = [browser.send("Confirm"), type_code(browser, asked["code"]), type_code(browser, "BBBB-BBBB")]
    assert {answer.status_code for answer in expired} == {404}
    assert all("older than ten minutes" in answer.text for answer in expired)
    unknown = api.anyone.post(POLL, json={"device_code": "unknown"})
    assert [poll(asked).json()["code"], unknown.json()["code"]] == ["login_code_not_found"] * 2


def test_wrong_codes_lock_the_person_who_types_them_and_no_sign_in(api, asked):
    person = join(api, api.tenant(), "owner")
    for _ in range(3):
        assert type_code(person.browser, "BBBB\0BBBB").status_code == 404
    assert type_code(person.browser, asked["code"]).status_code == 429
    person.browser.open("/keys")
    person.browser.send("Sign out")
    person.browser.open("/sign-in")
    assert person.browser.send("Sign in", email=person.email, password=PASSWORD).status_code == 200


@pytest.mark.parametrize(
    "origin", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "", "origin": "https://evil.example"}]
)
def test_a_form_of_another_site_confirms_nothing(api, asked, poll, origin):
    browser = join(api, api.tenant(), "owner").browser
    assert browser.post(TYPE, [("code", asked["code"])], **origin).status_code == 403
    type_code(browser, asked["code"]).raise_for_status()
    assert browser.post(f"{TYPE}/{asked['code']}/confirm", [], **origin).status_code == 403
    assert poll(asked).json()["key"] is None


def test_roles_that_make_no_keys_and_keys_themselves_confirm_nothing(api, asked):
    tenant = api.tenant()
    for role in ("viewer", "billing"):
        browser = join(api, tenant, role).browser
        browser.open("/login-code")
        assert "makes no keys" in browser.text
        assert browser.post(TYPE, [("code", asked["code"])]).status_code == 403
    assert tenant.http.post("/api/v1/device-authorizations", json={"code": asked["code"]}).status_code == 403
    operator = admin(api).browser
    assert operator.open("/login-code").status_code == 403, "the person belongs to no tenant"
    operator.open(f"/admin/tenants/{tenant.id}")
    operator.send("View as Acme")
    assert operator.post(TYPE, [("code", asked["code"])]).status_code == 403


def test_a_person_who_has_lost_the_role_gives_no_key(api, asked, poll, engine):
    browser = join(api, api.tenant(), "developer").browser
    type_code(browser, asked["code"])
    browser.send("Confirm").raise_for_status()
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE memberships SET role = 'viewer'")
    assert poll(asked).status_code == 404


def test_a_confirmation_asks_for_the_password_again(api, asked, poll, engine):
    browser = join(api, api.tenant(), "owner").browser
    type_code(browser, asked["code"])
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE console_sessions SET confirmed_at = now() - interval '1 hour'")
    browser.send("Confirm")
    assert "Your password, please" in browser.text
    assert poll(asked).json()["key"] is None
    browser.send("Go on", _password=PASSWORD)
    assert poll(asked).json()["key"]["key"].startswith("tnr_live_")


def test_a_command_that_polls_too_early_waits(api, asked):
    answers = [api.anyone.post(POLL, json={"device_code": asked["device_code"]}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert (answers[1].json()["code"], answers[1].headers["retry-after"]) == ("polled_too_early", str(asked["poll_s"]))


def test_so_many_codes_are_kept_until_they_expire(api, asked, change, engine):
    for _ in range(3):
        api.anyone.post(ASK, json={"label": "laptop"}).raise_for_status()
    refused = api.anyone.post(ASK, json={"label": "laptop"})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_logins")
    change("expires_at = now()")
    with unit_of_work(engine) as session:
        device_login.remove_expired(session)
    assert api.anyone.post(ASK, json={"label": "laptop"}).is_success


@pytest.mark.parametrize("label", ["", "x" * 101, "a\nb", "a\0b", "\x1b[2J", 7, None])
def test_a_label_that_no_page_could_show_is_refused(api, label):
    refused = api.anyone.post(ASK, json={"label": label})
    assert (refused.status_code, refused.json()["param"]) == (400, "label")


@pytest.mark.parametrize("label", ["<script>alert(1)</script>", "{{7*7}}", "W" * 100, "a\u202eb"])
def test_a_hostile_label_is_shown_as_text(api, label):
    browser = join(api, api.tenant(), "owner").browser
    asked = api.anyone.post(ASK, json={"label": label}).raise_for_status().json()
    html = type_code(browser, asked["code"]).text
    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert label.replace("\u202e", "\\u202e") in browser.text or label.startswith("<")
