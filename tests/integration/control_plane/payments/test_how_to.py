"""The commands and routes in docs/how-to/connect-stripe.md, run as they stand there against the simulator."""

import re
from pathlib import Path

from billing.payments.event_store import HANDLED_TYPES
from tests.fixtures.how_to import commands, send

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "how-to" / "connect-stripe.md").read_text()


def test_every_command_of_the_page_is_accepted(api, stage):
    tenant = api.tenant()
    values = {
        "TENORA_CONTROL_URL": api.url, "TENORA_ADMIN_KEY": api.admin_secret, "TENORA_API_KEY": tenant.key,
        "TENANT": tenant.id,
    }  # fmt: skip
    setup, top_up, portal, alarms, queues, operations, resume = commands("connect-stripe.md")

    pages = [send(command, values) for command in (setup, top_up, portal)]
    assert [page.status for page in pages] == [202, 202, 202]  # no worker opens the pages yet
    assert stage.work() == ["done"] * 4, "the customer, and a page each"
    for page in pages:
        opened = tenant.http.get(f"/api/v1/billing/pages/{page.body['id']}").raise_for_status().json()
        assert opened["url"].startswith(stage.simulator.url)

    stage.sdk.v1.customers.delete(stage.customer(tenant.id))
    invoice = stage.invoice(tenant.id, 700)
    assert stage.work() == ["stopped"]
    (alarm,) = send(alarms, values).body["data"]
    assert (alarm["kind"], alarm["tenant_id"]) == ("customer_deleted", tenant.id)
    (queue,) = send(queues, values).body["data"]
    assert (queue["id"], queue["pending"]) == (tenant.id, 1)
    assert send(operations, values).body["data"][0]["kind"] == "collect_invoice"
    assert send(resume, values).body["stopped_at"] is None
    assert stage.work_later() == ["stopped"], "the customer is still deleted"
    assert send(resume.replace("{}", '{"cancel": true}'), values).body["stopped_at"] is None
    assert (stage.work_later(), stage.due(invoice)) == ([], 700)


def test_the_page_names_every_event_that_real_money_has():
    (listed,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert {*listed.split(), "test_helpers.test_clock.ready"} == set(HANDLED_TYPES)


def test_the_page_explains_every_alarm():
    sources = "".join(each.read_text() for each in (ROOT / "billing" / "payments").glob("*.py"))
    kinds = set(re.findall(r'(?:raise_alarm\(\s*session,\s*kind=|QueueStops\(\s*)"(\w+)"', sources))
    assert len(kinds) >= 10
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in PAGE] == []
