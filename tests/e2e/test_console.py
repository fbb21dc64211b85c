"""A newcomer gets from the first link to answers of a real model by the console alone, without scripts."""

import re
from types import SimpleNamespace

import openai
import pytest

from tests.conftest import wait_until
from tests.e2e.conftest import LIMITS, PRICES
from tests.fixtures.control_plane.browser import admin

pytestmark = [pytest.mark.e2e]

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def api(platform):
    """The control plane as the browser's fixtures use it."""
    with platform.admin() as client:
        found = SimpleNamespace(url=platform.status()["control_url"], admin=client, clients=[])
        yield found
        for each in found.clients:
            each.close()


def test_a_newcomer_gets_from_a_link_to_an_answer_and_its_price(platform, api):
    plan = {"name": "console", "limits": LIMITS, "prices": PRICES}
    api.admin.post("/api/v1/admin/plans", json=plan).raise_for_status()
    browser = admin(api).browser
    browser.open("/admin/tenants")
    browser.send("Make tenant", name="Screen only", plan="console")
    browser.send("Join as owner")
    browser.open("/keys")
    browser.send("Create key", name="first")
    key = re.search(r"tnr_live_\w+", browser.last.text)[0]
    assert re.search(r"OPENAI_BASE_URL=(\S+)", browser.last.text)[1] == platform.status()["gateway_url"] + "/v1"

    with openai.OpenAI(base_url=platform.status()["gateway_url"] + "/v1", api_key=key, max_retries=0) as client:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=8)

    browser.open("/playground")
    browser.send("Run", model0=MODEL, model1="", user="What is a mountain?", max_tokens="8").raise_for_status()
    assert re.search(r"first \d+ ms · [\d.]+ tok/s · in \d+ out 8", browser.text)

    wait_until(lambda: "First call seen" in (browser.open("/"), browser.text)[1], timeout_s=60, what="it")
    wait_until(
        lambda: (browser.open("/requests"), browser.text)[1].count("✓ done") == 2, timeout_s=60, what="both requests"
    )
    wait_until(lambda: "so far" in (browser.open("/billing"), browser.text)[1], timeout_s=60, what="a draft")
    assert re.search(r"\$\d+\.\d\d so far", browser.text)
    browser.open("/admin/reconciliation")
    assert "unbilled" in browser.text
    browser.open("/admin/fleet")
    assert "✓ ready" in browser.text
