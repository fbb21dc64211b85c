"""Every page for every role: shown, refused with the reason, or not there; never a 5xx, and never another tenant's."""

import re

import pytest

from control_plane.console.pages import PAGES
from control_plane.members.roles import TENANT_ROLES
from tests.fixtures.control_plane.browser import join, path_of

NOT_FOR = {
    "developer": {"/team", "/audit"},
    "billing": {"/adapters", "/adapters/{name}", "/adapters/{name}/revisions/{revision_id}", "/keys", "/team", "/audit",
                "/batches", "/deletions/{revocation_id}", "/login-code/{code}"},
    "viewer": {"/keys", "/team", "/audit", "/batches", "/login-code/{code}"},
    "owner": set(),
}  # fmt: skip
OF_NONE = ("/requests/{request_id}", "/login-code/{code}")
TENANT_PAGES = [page for page in PAGES if not page.is_admin]
ADMIN_PAGES = [page for page in PAGES if page.is_admin]


@pytest.mark.parametrize("page", TENANT_PAGES, ids=lambda page: page.path)
@pytest.mark.parametrize("role", TENANT_ROLES)
def test_a_role_sees_its_pages_and_no_other(people, ids, page, role):
    browser = people[role].browser
    answer = browser.open(path_of(page, ids))
    wanted = 403 if page.path in NOT_FOR[role] else 404 if page.path in OF_NONE else 200
    assert answer.status_code == wanted, browser.text
    if page.group:
        assert (f'href="{page.path}"' in browser.open("/limits").text) == (wanted == 200)


@pytest.mark.parametrize("page", ADMIN_PAGES, ids=lambda page: page.path)
def test_the_platforms_pages_are_for_people_who_run_it(people, operator, ids, page):
    path = path_of(page, ids)
    assert people["owner"].browser.open(path).status_code == 403
    assert operator.browser.open(path).status_code == 200, operator.browser.text


@pytest.mark.parametrize("page", [page for page in TENANT_PAGES if "{" in page.path], ids=lambda page: page.path)
def test_another_tenants_things_are_as_unknown_as_none(walk, ids, page):
    stranger = join(walk.api, walk.api.tenant(), "owner").browser
    answer = stranger.open(path_of(page, ids))
    assert answer.status_code == 404
    assert stranger.open(path_of(page, {name: ["unknown"] for name in ids})).status_code == 404


def test_every_page_carries_the_headers_that_keep_scripts_out(people):
    headers = people["owner"].browser.open("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_no_page_has_a_style_or_a_handler_of_its_own(people, operator, ids):
    for page in PAGES:
        browser = operator.browser if page.is_admin else people["owner"].browser
        html = browser.open(path_of(page, ids)).text
        assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", html), page.path
        assert "<style" not in html
        assert re.findall(r"<script(?![^>]* src=)", html) == []


HOSTILE = [
    "<script>alert(1)</script>",
    "{{7*7}}",
    "\"'><img src=x>",
    "javascript:alert(1)",
    "W" * 120,
    "🦙 لاما",
    "a\u202eb\u200bc",
]


@pytest.mark.parametrize("name", HOSTILE, ids=["tag", "template", "quotes", "scheme", "wide", "scripts", "invisible"])
def test_a_hostile_name_is_shown_as_text(walk, people, name):
    walk.tenant.http.post("/api/v1/api-keys", json={"name": name, "scopes": ["inference"]}).raise_for_status()
    html = people["owner"].browser.open("/keys").text
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "\u202e" not in html
    if name.startswith("{{"):
        assert "{{7*7}}" in html


def test_a_filter_that_no_list_has_is_refused_by_its_name(people):
    browser = people["owner"].browser
    assert browser.open("/requests?colour=red").status_code == 400
    assert "colour" in browser.text
    assert browser.open("/requests?outcome=refused").status_code == 200


def test_assets_are_kept_for_good_and_their_names_change_with_them(people):
    browser = people["owner"].browser
    html = browser.open("/").text
    for path in re.findall(r'(?:href|src)="(/assets/[^"]+)"', html):
        answer = browser.http.get(path)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    assert browser.http.get("/assets/console.000000000000.css").status_code == 404


def test_a_first_view_is_small(people):
    browser = people["owner"].browser
    html = browser.open("/").content
    assets = [browser.http.get(path) for path in re.findall(r'(?:href|src)="(/assets/[^"]+)"', html.decode())]
    sent = sum(int(answer.headers["content-length"]) for answer in assets)
    assert len(html) + sent < 100_000
    assert len(html) < 30_000
