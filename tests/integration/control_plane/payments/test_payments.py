"""Payments over the API: pages of the simulator's, top-ups, webhooks, and what admins see and decide."""

import json
import time
from contextlib import AbstractContextManager
from functools import partial

import pytest

from billing.credits import lots
from billing.payments import standings
from control_plane.dependencies import handlers_of_changes
from control_plane.payments.service import StandingChanges
from core.db import unit_of_work
from core.ids import new_id
from core.money import cents_to_nanos
from tenora.stripe_simulator.webhooks import signature_header
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import Api, running_api
from tests.fixtures.databases import unreachable
from tests.fixtures.loops import running_loops
from tests.fixtures.together import together
from tests.integration.billing.payments.conftest import PaymentStage
from tests.integration.billing.payments.test_events import top_up_page
from tests.integration.control_plane.payments.conftest import BYTES_MAX, OLD, SECRET

pytestmark = pytest.mark.timeout(120)
URLS = {"success_url": "https://example.com/done", "cancel_url": "https://example.com/back"}


def working(stage: PaymentStage) -> AbstractContextManager[None]:
    """The billing worker's loop beside the API."""
    return running_loops(stage.engine, stage.performer.run_once)


def body_of(event_type: str = "payment_intent.succeeded", **changes) -> str:
    event = {
        "id": f"evt_{new_id('req')}",
        "object": "event",
        "api_version": "2026-10-28.endive",
        "created": int(time.time()),
        "data": {"object": {"id": "pi_1", "object": "payment_intent", "customer": "cus_1"}},
        "livemode": False,
        "pending_webhooks": 1,
        "request": None,
        "type": event_type,
    }
    return json.dumps(event | changes)


def post(api: Api, body: str, *secrets: str, age_s: int = 0, header: str | None = None):
    signature = header if header is not None else signature_header(body, list(secrets), int(time.time()) - age_s)
    headers = {"stripe-signature": signature} if signature else {}
    return api.anyone.post("/webhooks/stripe", content=body, headers=headers)


@pytest.mark.scenario(147)
def test_an_event_is_stored_once_however_often_and_at_once_it_is_posted(api, stage):
    body = body_of()
    answers = together(*[partial(post, api, body, SECRET)] * 3)
    assert [each.status_code for each in answers] == [200, 200, 200]
    assert stage.value("SELECT count(*) FROM stripe_events") == 1
    assert post(api, body, SECRET).json() == {"new": False}


@pytest.mark.scenario(150)
@pytest.mark.scenario(151)
@pytest.mark.parametrize(
    ("secrets", "age_s", "status"),
    [((OLD,), 0, 200), (("whsec_of_a_stranger",), 0, 400)],
)
def test_only_events_signed_with_a_secret_of_ours_are_stored(api, stage, secrets, age_s, status):
    assert post(api, body_of(), *secrets, age_s=age_s).status_code == status
    assert stage.value("SELECT count(*) FROM stripe_events") == (1 if status == 200 else 0)


@pytest.mark.scenario(153)
def test_a_webhook_that_meets_a_stopped_postgres_is_refused_and_handled_once_when_it_comes_again(
    api, stage, postgres_settings
):
    tenant = stage.tenant(card=None)
    _, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    body = body_of("checkout.session.completed", data={"object": {"id": page, "object": "checkout.session"}})
    with unreachable(postgres_settings):
        refused = post(api, body, SECRET)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert stage.value("SELECT count(*) FROM stripe_events") == 0
    assert [post(api, body, SECRET).json() for _ in range(2)] == [{"new": True}, {"new": False}]
    while stage.events.run_once():
        pass
    assert [row["state"] for row in stage.rows("SELECT state FROM stripe_events")] == ["handled"]
    assert stage.bought(tenant) == [2_500]


def test_a_webhook_above_the_limit_is_refused(api, stage):
    body = body_of(padding="x" * BYTES_MAX)
    assert post(api, body, SECRET).status_code == 413
    assert stage.value("SELECT count(*) FROM stripe_events") == 0


def test_without_stripe_nothing_is_sold(settings):
    with running_api(settings) as bare:
        refused = bare.tenant().http.post("/api/v1/billing/setup", json=URLS)
        assert (refused.status_code, refused.json()["code"]) == (409, "payments_not_set_up")
        assert post(bare, body_of(), SECRET).status_code == 409


def test_a_tenant_saves_a_card_buys_credit_and_opens_the_portal(api, stage):
    tenant = api.tenant()
    with working(stage):
        pages = {}
        for path, body in (("setup", URLS), ("top-ups", URLS | {"amount_cents": 2_500})):
            asked = tenant.http.post(f"/api/v1/billing/{path}", json=body).raise_for_status().json()
            pages[path] = wait_until(lambda page=asked["id"]: _ready(tenant, page), what=f"the page of {path}")
            assert pages[path]["url"].startswith(stage.simulator.url)
            assert pages[path]["simulated"] is True
        portal = tenant.http.post("/api/v1/billing/portal", json={"return_url": "https://example.com"})
        assert wait_until(lambda: _ready(tenant, portal.json()["id"]), what="the portal")["url"]
    session = stage.value("SELECT result FROM payment_operations WHERE id = :i", i=pages["top-ups"]["id"])["page"]
    stage.simulator.control("POST", f"checkout/{session}", {"card": "4242424242424242"})
    stage.receive()
    top_ups = tenant.http.get("/api/v1/billing/top-ups").raise_for_status().json()["data"]
    assert [(each["amount_cents"], each["state"]) for each in top_ups] == [(2_500, "paid")]


def _ready(tenant, page_id: str):
    page = tenant.http.get(f"/api/v1/billing/pages/{page_id}").raise_for_status().json()
    return page if page["state"] == "ready" else None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"amount_cents": 49}, "amount_cents"),
        ({"amount_cents": 100_000_000}, "amount_cents"),
        ({"success_url": "javascript:alert(1)"}, "success_url"),
    ],
)
def test_a_wrong_top_up_is_refused_with_the_field_and_nothing_is_written(api, stage, changes, param):
    refused = api.tenant().http.post("/api/v1/billing/top-ups", json=URLS | {"amount_cents": 1_000} | changes)
    assert (refused.status_code, refused.json()["param"]) == (400, param)
    assert stage.value("SELECT count(*) FROM payment_queues") == 0


def test_credit_that_was_bought_at_stripe_is_refunded_there_and_not_voided(api, stage):
    tenant = api.tenant()
    with unit_of_work(stage.engine) as session:
        lot = lots.grant(
            session, tenant_id=tenant.id, kind="paid", amount_nanos=cents_to_nanos(2_500), reference="stripe:pi_1"
        )
    path = f"/api/v1/admin/tenants/{tenant.id}/credits/{lot.id}"
    void = api.admin.post(f"{path}/void")
    assert (void.status_code, void.json()["code"]) == (409, "credit_lot_bought")
    too_much = api.admin.post(f"{path}/refund", json={"amount_nanos": cents_to_nanos(2_501)})
    assert (too_much.status_code, too_much.json()["code"]) == (422, "refund_exceeds_unspent")
    queued = "SELECT content - 'refund_id' AS content FROM payment_operations WHERE kind = 'refund'"
    assert stage.rows(queued) == []
    for _ in range(2):
        back = api.admin.post(
            f"{path}/refund", json={"amount_nanos": cents_to_nanos(1_000)}, headers={"idempotency-key": "one"}
        )
        assert back.json()["balance_nanos"] == cents_to_nanos(1_500)
    assert [row["content"] for row in stage.rows(queued)] == [
        {"kind": "refund", "payment_intent": "pi_1", "amount_cents": 1_000, "invoice_id": None, "part": 1}
    ]


def unpaid(stage) -> tuple[str, str]:
    """An invoice of $40.00 whose payment failed, and the address at which its owner pays."""
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 4_000)
    assert stage.work() == ["failed"]
    return invoice, f"/pay/{stage.case(invoice)['pay_token']}"


def shown(api: Api, address: str, status: int):
    """The answer at an address, once it has this status."""

    def ask():
        answer = api.anyone.get(address, follow_redirects=False)
        return answer if answer.status_code == status else None

    return wait_until(ask, what=f"the answer {status}")


def test_the_address_of_an_unpaid_invoice_leads_to_a_page_over_what_is_due_until_it_is_paid(api, stage):
    invoice, address = unpaid(stage)
    stage.pay_by_hand(invoice, 1_000)
    with working(stage):
        opened = shown(api, address, 303)
        assert opened.headers["cache-control"] == "no-store"
        page = stage.value("SELECT page FROM payment_charges WHERE on_page")
        assert opened.headers["location"] == stage.account.page(page).url
        assert stage.sdk.v1.checkout.sessions.retrieve(page).amount_total == 3_000
        stage.pay_page(page)  # Stripe leads back here, before its event came
        assert shown(api, address, 200).text == f"Nothing is due of invoice {stage.read(invoice).number}."
    assert stage.due(invoice) == 0


def test_the_address_of_an_unpaid_invoice_says_why_there_is_no_page(api, stage):
    invoice, address = unpaid(stage)
    waits = api.anyone.get(address)  # no worker opens the page here
    assert (waits.status_code, waits.headers["refresh"]) == (202, "3")
    assert api.anyone.get(address).status_code == 202
    assert stage.value("SELECT count(*) FROM payment_operations WHERE kind = 'open_invoice_page'") == 1
    assert "not paid yet" in api.anyone.get(f"{address}?left=true").text
    stage.pay_by_hand(invoice, 3_980)
    with working(stage):
        assert "too small to be charged" in shown(api, address, 200).text
    unknown = api.anyone.get("/pay/never-was")
    assert (unknown.status_code, unknown.headers["content-type"].split(";")[0]) == (404, "text/plain")


def test_a_tenant_is_put_on_a_test_clock_before_its_first_payment_and_not_after(api, stage):
    tenant, clock = api.tenant(), stage.sdk.v1.test_helpers.test_clocks.create({"frozen_time": 1_800_000_000})
    path = f"/api/v1/admin/payments/queues/{tenant.id}"
    for _ in range(2):  # asking again changes nothing
        opened = api.admin.put(path, json={"test_clock": clock.id}).raise_for_status().json()
        assert (opened["id"], opened["test_clock"]) == (tenant.id, clock.id)
    refused = api.admin.put(path, json={"test_clock": "clock_other"})
    assert (refused.status_code, refused.json()["code"]) == (409, "payment_queue_exists")
    assert stage.work() == ["done"]
    assert stage.sdk.v1.customers.retrieve(stage.customer(tenant.id)).test_clock == clock.id


@pytest.mark.scenario(152)
def test_an_admin_sees_ignored_events_and_handles_them_again(api, stage):
    for number in range(3):
        assert post(api, body_of("coupon.created", id=f"evt_{number}"), SECRET).json() == {"new": True}
    stage.events.run_once()
    first = api.admin.get("/api/v1/admin/payments/events?event_state=ignored&limit=2").raise_for_status().json()
    rest = api.admin.get(f"/api/v1/admin/payments/events?limit=2&cursor={first['next_cursor']}").json()
    assert {each["id"] for each in first["data"] + rest["data"]} == {"evt_0", "evt_1", "evt_2"}
    again = api.admin.post("/api/v1/admin/payments/events/evt_1/handle").raise_for_status().json()
    assert again["state"] == "stored"
    refused = api.admin.post("/api/v1/admin/payments/events/evt_1/handle")
    assert (refused.status_code, refused.json()["code"]) == (409, "stripe_event_not_retryable")


@pytest.mark.scenario(139)
def test_dunning_suspends_and_restores_a_tenant_but_not_one_that_an_admin_suspended(api, stage):
    tenant, other = api.tenant(), api.tenant()
    changes = StandingChanges(stage.engine, handlers_of_changes())
    status = lambda one: api.admin.get(f"/api/v1/admin/tenants/{one.id}").json()["status"]  # noqa: E731
    api.admin.patch(f"/api/v1/admin/tenants/{other.id}", json={"status": "suspended"}).raise_for_status()
    for one in (tenant, other):
        with unit_of_work(stage.engine) as session:
            standings.suspend(session, one.id, "invoice inv_1 is unpaid after 14 days")
    changes.run_once()
    assert (status(tenant), status(other)) == ("suspended", "suspended")
    for one in (tenant, other):
        with unit_of_work(stage.engine) as session:
            standings.restore_if_paid(session, one.id)
    changes.run_once()
    assert (status(tenant), status(other)) == ("active", "suspended")
