"""Who gets a session, and when it ends."""

import pytest

from control_plane.settings import ConsoleSettings, WebSettings
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.control_plane.browser import PASSWORD, Browser, admin, code_of, join


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return control_settings(
        postgres_settings,
        redis_settings,
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        console=ConsoleSettings(sign_in_failures_max=3),
    )


def sign_in(browser, email, password=PASSWORD, code=""):
    browser.open("/sign-in")
    return browser.send("Sign in", email=email, password=password, code=code)


def test_an_invitation_makes_a_member_once(api):
    tenant = api.tenant()
    person = join(api, tenant, "developer")
    assert "Get to your first answer" in person.browser.text
    used = api.admin.post(f"/api/v1/admin/tenants/{tenant.id}/invitations", json={"email": "b@example.com"}).json()
    path = used["link"].removeprefix(api.url)
    first = Browser(api)
    first.open(path)
    first.send("Accept", name="Ben", password=PASSWORD)
    assert first.last.status_code == 200
    assert Browser(api).open(path).status_code == 404


def test_an_old_or_withdrawn_invitation_is_as_unknown_as_any_other(api, engine):
    tenant = api.tenant()
    made = api.admin.post(f"/api/v1/admin/tenants/{tenant.id}/invitations", json={"email": "b@example.com"}).json()
    path = made["link"].removeprefix(api.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE invitations SET expires_at = now() - interval '1 second'")
    assert Browser(api).open(path).status_code == Browser(api).open("/invitations/unknown").status_code == 404


def test_an_unknown_person_a_wrong_password_and_a_wrong_code_get_the_same_answer(api):
    person, operator = join(api, api.tenant(), "owner"), admin(api)
    answers = [
        sign_in(Browser(api), "unknown@example.com"),
        sign_in(Browser(api), person.email, "another password"),
        sign_in(Browser(api), operator.email, code="000000"),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert all("E-mail address, password or code is wrong" in answer.text for answer in answers)


def test_failures_are_counted_and_lock_for_a_while(api, engine):
    person = join(api, api.tenant(), "owner")
    for _ in range(3):
        assert sign_in(Browser(api), person.email, "a wrong password").status_code == 401
    locked = sign_in(Browser(api), person.email)
    assert (locked.status_code, "Too many failed sign-ins" in locked.text) == (429, True)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sign_in_tries SET since = now() - interval '1 hour'")
    assert sign_in(Browser(api), person.email).status_code == 200


def test_a_code_and_a_recovery_code_count_once(api):
    operator = admin(api)
    codes = operator.browser.last.text.split("<pre")[1].split(">")[1].split("<")[0].split()
    used = code_of(operator.totp_secret)  # the one that turned it on
    assert sign_in(Browser(api), operator.email, code=used).status_code == 401
    assert sign_in(Browser(api), operator.email, code=code_of(operator.totp_secret, 1)).status_code == 200
    assert sign_in(Browser(api), operator.email, code=codes[0].upper()).status_code == 200
    assert sign_in(Browser(api), operator.email, code=codes[0]).status_code == 401


def test_a_session_ends_with_sign_out_age_and_idleness(api, engine):
    person = join(api, api.tenant(), "owner")
    other = Browser(api)
    sign_in(other, person.email)
    assert other.open("/").status_code == 200
    other.send("Sign out")
    assert other.open("/").url.path == "/sign-in"
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE console_sessions SET seen_at = now() - interval '13 hours'")
    assert person.browser.open("/keys").url.path == "/sign-in"


def test_a_change_of_role_and_of_the_password_end_sessions(api):
    tenant = api.tenant()
    owner, developer = join(api, tenant, "owner"), join(api, tenant, "developer")
    second = Browser(api)
    sign_in(second, developer.email)
    developer.browser.open("/account")
    developer.browser.send("Change password", password=PASSWORD, new_password="another long password")
    assert second.open("/").url.path == "/sign-in"
    assert developer.browser.open("/").url.path == "/"
    member = next(
        each["id"]
        for each in api.admin.get(f"/api/v1/admin/tenants/{tenant.id}/members").json()["data"]
        if each["email"] == developer.email
    )
    owner.browser.open("/team")
    owner.browser.post(
        f"/do/api/v1/members/{member}", [("_method", "PATCH"), ("_back", "/team"), ("role", "viewer")]
    ).raise_for_status()
    assert developer.browser.open("/").url.path == "/sign-in"


def test_a_tenant_keeps_its_last_owner(api):
    tenant = api.tenant()
    owner = join(api, tenant, "owner")
    owner.browser.open("/team")
    refused = owner.browser.send("Change role", role="viewer")
    assert (refused.status_code, "at least one owner" in owner.browser.text) == (409, True)


@pytest.mark.parametrize(
    "origin", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "", "origin": "https://evil.example"}]
)
def test_a_form_of_another_site_changes_nothing(api, origin):
    person = join(api, api.tenant(), "owner")
    fields = [("_back", "/keys"), ("name", "stolen")]
    answer = person.browser.post("/do/api/v1/api-keys", fields, **origin)
    assert answer.status_code == 403
    assert "stolen" not in person.browser.open("/keys").text


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_a_sign_in_leads_to_no_other_site(api, target):
    person = join(api, api.tenant(), "owner")
    browser = Browser(api)
    browser.http.follow_redirects = False
    browser.open("/sign-in")
    answer = browser.send("Sign in", email=person.email, password=PASSWORD, next=target)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_plain_http_to_another_machine_is_refused(api):
    answer = Browser(api).http.get("/sign-in", headers={"host": "tenora.example.com"})
    assert (answer.status_code, "TENORA_CONTROL_PUBLIC_URL" in answer.text) == (403, True)


def test_a_weak_password_is_refused_and_the_form_keeps_the_rest(api):
    link = api.admin.post("/api/v1/admin/invitations", json={"role": "admin"}).json()["link"]
    browser = Browser(api)
    browser.open(link.removeprefix(api.url))
    refused = browser.send("Accept", email="zoe@example.com", name="Zoë", password="short")
    assert (refused.status_code, "12 to 200 characters" in browser.text) == (400, True)
    assert dict(browser.form("Accept").fields)["name"] == "Zoë"
    assert "short" not in dict(browser.form("Accept").fields)["password"]


def test_an_invitation_does_not_replace_the_second_factor(api):
    operator, tenant = admin(api), api.tenant()
    body = {"email": operator.email, "role": "owner"}
    link = api.admin.post(f"/api/v1/admin/tenants/{tenant.id}/invitations", json=body).json()["link"]
    browser = Browser(api)
    browser.open(link.removeprefix(api.url))
    browser.send("Accept", password=PASSWORD)
    assert browser.last.url.path == "/sign-in"
    assert browser.open("/admin").url.path == "/sign-in"
    assert sign_in(browser, operator.email, code=code_of(operator.totp_secret, 1)).status_code == 200
    assert "Get to your first answer" in browser.text


def test_a_recovery_link_sets_another_password_and_ends_what_was(api):
    lost, operator = join(api, api.tenant(), "owner"), admin(api)
    tenant = next(each["id"] for each in api.admin.get("/api/v1/admin/tenants").json()["data"])
    operator.browser.open(f"/admin/tenants/{tenant}")
    operator.browser.send("Recovery link")
    path = operator.browser.last.text.split('<pre class="secret" data-copy>')[1].split("<")[0].removeprefix(api.url)
    browser = Browser(api)
    browser.open(path)
    assert browser.send("Accept", password="short").status_code == 400
    browser.send("Accept", password="another long password")
    assert lost.browser.open("/").url.path == "/sign-in"
    assert sign_in(Browser(api), lost.email).status_code == 401
    assert sign_in(Browser(api), lost.email, "another long password").status_code == 200
    assert Browser(api).open(path).status_code == 404


def test_people_who_run_the_platform_need_a_second_factor(api):
    link = api.admin.post("/api/v1/admin/invitations", json={"role": "admin"}).json()["link"]
    browser = Browser(api)
    browser.open(link.removeprefix(api.url))
    browser.send("Accept", email="zoe@example.com", name="Zoë", password=PASSWORD)
    assert browser.open("/admin").status_code == 403
    assert browser.open("/").url.path == "/account"
