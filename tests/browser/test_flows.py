"""What people do, in a real browser: by keys alone, without scripts, in two tabs, and through an upload that stops."""

import re

import pytest

from tests.browser.chromium import view
from tests.fixtures.control_plane.browser import PASSWORD
from tests.fixtures.uploads.peft_adapters import adapter_config

pytestmark = pytest.mark.browser
WEIGHTS_BYTES = 40 << 20  # three parts


def tab_to(page, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"{selector} is not reached by Tab")


def sign_in(page, url, email):
    page.goto(f"{url}/sign-in")
    page.fill("#email", email)
    page.fill("#password", PASSWORD)
    page.click("main button")
    page.wait_for_url(f"{url}/")


def test_a_key_is_made_and_copied_by_keys_alone(platform, browser):
    url = platform.api.url
    with view(browser, url, permissions=["clipboard-read", "clipboard-write"]) as shown:
        page, keys = shown.page, shown.page.keyboard
        shown.open("/sign-in")
        tab_to(page, "#email")
        keys.type(platform.owner.email)
        tab_to(page, "#password")
        keys.type(PASSWORD)
        keys.press("Enter")
        page.wait_for_url(f"{url}/")
        keys.type("gk")
        page.wait_for_url(f"{url}/keys")
        tab_to(page, "form[action$='/api-keys'] input[name=name]")
        keys.type("by keys alone")
        keys.press("Enter")
        page.wait_for_url("**/do/api/v1/api-keys")
        tab_to(page, "button.copy")
        keys.press("Enter")
        page.get_by_text("Copied", exact=True).first.wait_for()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert re.fullmatch(r"tnr_live_\w+", copied)
        assert platform.api.client(copied).get("/api/v1/me").json()["tenant"]["id"] == platform.tenant.id
        assert shown.wrong == []


def test_single_keys_do_nothing_once_they_are_turned_off(platform, browser):
    with view(browser, platform.api.url, platform.owner) as shown:
        shown.open("/account")
        shown.page.keyboard.press("?")
        assert shown.page.locator("#shortcuts").is_visible()
        shown.page.keyboard.press("Escape")
        shown.page.locator("form[action$='/account/shortcuts'] button").click()
        shown.page.get_by_text("Shortcuts changed").wait_for()
        shown.page.keyboard.type("gk")
        shown.page.keyboard.press("?")
        assert shown.page.url.endswith("/account")
        assert shown.page.locator("#shortcuts").count() == 0


def test_rows_and_columns_are_read_by_keys(platform, browser):
    with view(browser, platform.api.url, platform.owner) as shown:
        shown.open("/requests")
        shown.page.keyboard.press("j")
        shown.page.keyboard.press("j")
        second = shown.page.locator("main tbody tr").nth(1).locator("a").first
        assert second.evaluate("each => each === document.activeElement")
        shown.open("/usage")
        chart = shown.page.locator(".chart").first
        chart.focus()
        shown.page.keyboard.press("End")
        last = chart.locator("g title").last.text_content()
        assert shown.page.locator(".readout").first.text_content() == last


def test_forms_work_without_scripts(platform, browser):
    url = platform.api.url
    with view(browser, url, device="phone", java_script_enabled=False) as shown:
        page = shown.page
        sign_in(page, url, platform.owner.email)
        page.click(".open-pages")
        page.click("nav.pages a[href='/keys']")
        page.fill("form[action$='/api-keys'] input[name=name]", "without scripts")
        page.click("form[action$='/api-keys'] button.primary")
        assert page.inner_text("pre.secret").startswith("tnr_live_")
        page.goto(f"{url}/team")
        page.click("main table button[popovertarget]")
        assert page.is_visible("select[name=role] >> nth=0")
        page.goto(f"{url}/playground")
        page.fill("#user", "Who are you?")
        page.click("form#playground button.primary")
        assert "I am" in page.inner_text("[data-pane='0']")
        assert shown.wrong == []


def test_two_tabs_share_a_session_and_its_end(platform, browser):
    url = platform.api.url
    with view(browser, url) as shown:
        first = shown.page
        sign_in(first, url, platform.owner.email)
        second = first.context.new_page()
        second.goto(f"{url}/limits")
        first.click(".menu.account summary")
        first.get_by_role("button", name="Sign out").click()
        first.wait_for_url("**/sign-in**")
        second.reload()
        assert "/sign-in?next=%2Flimits" in second.url
        second.fill("#email", platform.owner.email)
        second.fill("#password", PASSWORD)
        second.click("main button")
        second.wait_for_url(f"{url}/limits")


@pytest.fixture
def folder(platform, tmp_path):
    """A folder as training leaves it, with more than an adapter."""
    import json

    made = tmp_path / "dropped"
    made.mkdir()
    (made / "adapter_config.json").write_text(json.dumps(adapter_config(platform.base)))
    (made / "adapter_model.safetensors").write_bytes(bytes(range(256)) * (WEIGHTS_BYTES // 256))
    (made / "optimizer.pt").write_bytes(b"not sent")
    return made


def test_an_upload_that_was_cut_by_a_reload_goes_on_with_the_same_folder(platform, browser, folder):
    bucket = platform.bucket.client.meta.endpoint_url
    with view(browser, platform.api.url, platform.owner) as shown:
        page, sent, held = shown.page, [], []

        def hold(route):
            held.append(route)

        page.on("request", lambda asked: sent.append(asked.url) if asked.method == "PUT" else None)
        page.route(re.compile(r"partNumber=[23]"), hold)
        shown.open("/adapters")
        page.fill("#adapter", "from-the-browser")
        page.set_input_files("input[webkitdirectory]", folder)
        page.wait_for_selector("progress:visible")
        page.get_by_text(re.compile(r"Sending 1[67]\.\d of 41\.9 MB")).wait_for(timeout=30_000)
        page.unroute_all(behavior="ignoreErrors")
        page.reload()
        page.fill("#adapter", "from-the-browser")
        page.set_input_files("input[webkitdirectory]", folder)
        page.wait_for_url("**/adapters/from-the-browser/revisions/rev_*", timeout=60_000)
        assert "validating" in page.inner_text("main")
        assert all(url.startswith(bucket) for url in sent)
        revisions = platform.tenant.http.get("/api/v1/adapters/from-the-browser/revisions").json()["data"]
        assert [each["status"] for each in revisions] == ["validating"]
        assert [each for each in shown.wrong if not each.startswith(bucket)] == []


def test_a_folder_that_is_no_adapter_is_refused_before_a_byte_is_sent(platform, browser, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / "adapter_config.json").write_text("{}")
    with view(browser, platform.api.url, platform.owner) as shown:
        sent = []
        shown.page.on("request", lambda asked: sent.append(asked.url) if asked.method in ("PUT", "POST") else None)
        shown.open("/adapters")
        shown.page.fill("#adapter", "no-adapter")
        shown.page.set_input_files("input[webkitdirectory]", tmp_path)
        shown.page.get_by_text("pytorch_model.bin is a pickle").wait_for()
        assert sent == []
