"""What a person finds by a name or an id: what it may see, and nothing else."""

import pytest

from tests.fixtures.control_plane.browser import admin, join


@pytest.fixture
def browser(api, base):
    tenant = api.tenant()
    tenant.http.post("/api/v1/adapters", json={"name": "ticket-router", "base_model": base.id}).raise_for_status()
    tenant.http.post("/api/v1/api-keys", json={"name": "ticket-prod"}).raise_for_status()
    return join(api, tenant, "owner").browser


def test_a_name_is_found_in_pages_adapters_and_keys(browser):
    page = browser.open("/search?q=TICKET").text
    assert 'href="/adapters/ticket-router"' in page
    assert "ticket-prod" in page
    assert 'href="/webhooks"' in browser.open("/search?q=webh").text
    assert "Nothing has" in browser.open("/search?q=%3Cscript%3E").text
    assert "&lt;script&gt;" in browser.last.text
    assert browser.open("/search").status_code == 200


@pytest.mark.parametrize(("words", "path"), [("req_1", "/requests/req_1"), ("inv_1", "/invoices/inv_1")])
def test_an_id_leads_to_its_page(browser, words, path):
    browser.open(f"/search?q={words}")
    assert browser.last.url.path == path


def test_others_tenants_are_found_by_admins_alone(browser, api):
    tenant = api.tenant()
    name = api.admin.get(f"/api/v1/admin/tenants/{tenant.id}").json()["name"]
    assert f"/admin/tenants/{tenant.id}" in admin(api).browser.open(f"/search?q={name}").text
    assert "/admin/tenants/" not in browser.open(f"/search?q={name}").text
    stranger = join(api, tenant, "owner").browser
    assert "Nothing has" in stranger.open("/search?q=ticket").text


def test_a_role_without_keys_finds_the_rest(api, base):
    tenant = api.tenant()
    tenant.http.post("/api/v1/adapters", json={"name": "bot", "base_model": base.id}).raise_for_status()
    tenant.http.post("/api/v1/api-keys", json={"name": "bot-key"}).raise_for_status()
    page = join(api, tenant, "viewer").browser.open("/search?q=bot").text
    assert 'href="/adapters/bot"' in page
    assert "bot-key" not in page
