"""The cards and calls of docs/how-to/set-prices.md, sent as they stand there."""

import json
import re
from pathlib import Path

from control_plane.dollars import with_dollars
from tests.fixtures.control_plane.api import LIMITS, PRICES

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "set-prices.md").read_text()
MODEL = "smollm2-135m-instruct"


def test_every_card_of_the_page_is_accepted_and_shown_as_it_was_sent(api, base):
    cards = [json.loads(text.replace(MODEL, base.id)) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert len(cards) == 4
    for card in cards:
        plan = api.plan()
        url = f"/api/v1/admin/plans/{plan['id']}/drafts"
        draft = api.admin.post(url, json={"limits": LIMITS, "prices": card}).raise_for_status().json()
        published = api.admin.post(f"{url}/{draft['id']}/publish", json={}).raise_for_status().json()
        defaults = {"base_fee_when": "arrears", "commitment_interval": "period"}
        assert published["prices"] == with_dollars(
            {name: card[name] for name in card if card[name] != defaults.get(name)}
        )


def test_every_call_of_the_page_about_one_tenant_is_accepted(api):
    api.plan("large")
    tenant = api.tenant()
    expires = {"prices": PRICES, "expires_at": "2099-01-01T00:00:00Z"}
    calls = re.findall(r"^\| [^|]+ \| `(\w+) (/[^`]+)`(?: with `(\{.*?\})`)?.*\|$", PAGE, re.MULTILINE)
    assert len(calls) == 11
    discount_id = ""
    for method, path, body_text in calls:
        body = json.loads(body_text) if body_text else expires if path == "/price-overrides" else None
        url = f"/api/v1/admin/tenants/{tenant.id}{path}".replace("{discount_id}", discount_id)
        answer = api.admin.request(method, url, json=None if method == "DELETE" else body)
        assert answer.status_code in (200, 201), (method, path, answer.text)
        if path == "/discounts":
            discount_id = answer.json()["id"]
