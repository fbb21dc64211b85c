"""Every page in a real browser, in both themes, on a phone and on a desktop: nothing is wrong with it."""

import pytest

from tests.browser.chromium import THEMES, WIDTHS, view
from tests.browser.conftest import ADMIN_PATHS, TENANT_PATHS

pytestmark = pytest.mark.browser
WITH_SHEETS = (
    "/limits", "/billing", "/team", "/webhooks", "/adapters/{name}", "/admin/fleet", "/admin/tenants/{tenant_id}",
    "/admin/invoices",
)  # fmt: skip


def person_of(platform, path):
    return platform.operator if path.startswith("/admin") else platform.owner


@pytest.mark.parametrize("path", [*TENANT_PATHS, *ADMIN_PATHS])
def test_nothing_is_wrong_with_a_page(platform, browser, path):
    target, person = path.format(**platform.ids), person_of(platform, path)
    for device in WIDTHS:
        with view(browser, platform.api.url, person, device=device, axe=True) as shown:
            shown.open(target)
            for theme in THEMES:
                shown.page.emulate_media(color_scheme=theme)
                assert shown.axe() == [], (device, theme)
            assert shown.too_wide() == [], device
            assert shown.wrong == [], device
            if device == "phone":
                assert shown.too_small() == []
            else:
                usual = shown.words()
                shown.page.set_viewport_size({"width": WIDTHS[device] // 4, "height": 800})  # as at 400 % zoom
                assert usual - shown.words() == set()
                assert shown.too_wide() == [], "400 %"


@pytest.mark.parametrize("path", WITH_SHEETS)
def test_what_opens_above_a_page_is_reached_and_left_by_keys(platform, browser, path):
    with view(browser, platform.api.url, person_of(platform, path), axe=True) as shown:
        shown.open(path.format(**platform.ids))
        button = shown.page.locator("main button[popovertarget]:not([popovertargetaction])").first
        button.focus()
        shown.page.keyboard.press("Enter")
        assert shown.page.locator(":popover-open").is_visible()
        assert shown.axe() == []
        shown.page.keyboard.press("Escape")
        assert shown.page.locator(":popover-open").count() == 0
        assert button.evaluate("each => each === document.activeElement")


@pytest.mark.parametrize(("path", "status"), [("/sign-in", 200), ("/invitations/unknown", 404)])
def test_pages_for_people_who_are_not_signed_in(platform, browser, path, status):
    for device in WIDTHS:
        with view(browser, platform.api.url, device=device, axe=True) as shown:
            shown.open(path, status=status)
            assert shown.axe() == []
            assert shown.too_wide() == []
