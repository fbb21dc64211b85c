"""Stripe's events: stored once, handled once, in any order, and from the object that is fetched again."""

import threading
from datetime import timedelta

import pytest

from billing.payments import event_handling, event_store, queue
from billing.payments.operations import ChargeTopUp, OpenSetupPage, OpenTopUpPage
from billing.stripe.objects import StripeEvent
from core.db import database_now, unit_of_work
from core.ids import new_id
from tests.fixtures.together import together

pytestmark = pytest.mark.timeout(120)
URLS = {"success_url": "https://example.com/done", "cancel_url": "https://example.com/back"}


def top_up_page(stage, tenant: str, cents: int = 2_500) -> tuple[str, str]:
    """The id of a top-up and of its page."""
    top_up = new_id("top")
    operation = stage.enqueue(tenant, OpenTopUpPage(request_id=top_up, amount_cents=cents, **URLS))
    assert stage.work() == ["done"]
    result = stage.value("SELECT result FROM payment_operations WHERE id = :i", i=operation)
    assert result["url"].startswith(stage.simulator.url)
    return top_up, result["page"]


def states(stage) -> dict[str, str]:
    return {row["id"]: row["state"] for row in stage.rows("SELECT id, state FROM stripe_events")}


def event(stage, event_type: str, object_kind: str, object_id: str, customer: str | None, **changes) -> StripeEvent:
    with unit_of_work(stage.engine) as session:
        now = database_now(session)
    values = {"id": f"evt_{new_id('req')}", "type": event_type, "created_at": now, "api_version": "2026-10-28.endive"}
    values |= {"object_id": object_id, "object_kind": object_kind, "customer": customer}
    return StripeEvent(**(values | changes))


def store(stage, *events: StripeEvent) -> int:
    with unit_of_work(stage.engine) as session:
        return event_store.store(session, events, source="webhook")


@pytest.mark.scenario(80)
@pytest.mark.parametrize("reverse", [False, True])
def test_all_events_of_one_top_up_twice_and_in_any_order_grant_it_once(stage, reverse):
    tenant = stage.tenant(card=None)
    top_up, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    intent = stage.account.page(page).payment_intent
    customer = stage.customer(tenant)
    events = [
        event(stage, "checkout.session.completed", "checkout.session", page, customer),
        event(stage, "payment_intent.succeeded", "payment_intent", intent, customer),
        event(stage, "payment_intent.succeeded", "payment_intent", intent, customer),
        event(stage, "checkout.session.completed", "checkout.session", page, customer),
    ]
    for each in reversed(events) if reverse else events:
        assert store(stage, each) == 1
        assert store(stage, each) == 0
        stage.events.run_once()
    assert stage.bought(tenant) == [2_500]
    assert stage.value("SELECT state FROM payment_charges WHERE id = :i", i=top_up) == "paid"
    assert stage.notices(tenant) == ["top_up.succeeded"]
    assert set(states(stage).values()) == {"handled"}


@pytest.mark.scenario(79)
@pytest.mark.scenario(147)
def test_two_workers_handle_the_events_of_one_payment_at_once_and_grant_it_once(stage):
    tenant = stage.tenant(card=None)
    _, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    intent, customer = stage.account.page(page).payment_intent, stage.customer(tenant)
    store(stage, *(event(stage, "payment_intent.succeeded", "payment_intent", intent, customer) for _ in range(8)))
    stage.events._settings = stage.settings.model_copy(update={"payments_events_batch_max": 4})
    together(stage.events.run_once, stage.events.run_once)
    while stage.events.run_once():
        pass
    assert stage.bought(tenant) == [2_500]
    assert list(states(stage).values()) == ["handled"] * 8


@pytest.mark.scenario(85)
@pytest.mark.parametrize(
    ("card", "state"), [("chargeDeclinedInsufficientFunds", "failed"), ("authenticationRequired", "needs_owner")]
)
def test_a_top_up_with_a_card_that_does_not_pay_grants_nothing(stage, card, state):
    tenant = stage.tenant(card)
    top_up = new_id("top")
    stage.enqueue(tenant, ChargeTopUp(charge_id=top_up, amount_cents=2_500))
    assert stage.work() == ["failed"]
    stage.receive()
    assert stage.bought(tenant) == []
    assert stage.value("SELECT state FROM payment_charges WHERE id = :i", i=top_up) == state
    assert stage.notices(tenant) == ["top_up.failed"]


def test_a_top_up_that_stripe_refuses_has_failed_and_blocks_no_other(stage):
    tenant = stage.tenant()
    stage.change("UPDATE payment_queues SET customer_id = 'cus_never_was' WHERE tenant_id = :t", t=tenant)
    charged, page = new_id("top"), new_id("top")
    stage.enqueue(tenant, ChargeTopUp(charge_id=charged, amount_cents=2_500))
    stage.enqueue(tenant, OpenTopUpPage(request_id=page, amount_cents=2_500, **URLS))
    assert stage.work() == ["failed"] * 2
    assert stage.value("SELECT count(*) FROM payment_charges WHERE state = 'failed'") == 2
    assert stage.notices(tenant) == ["top_up.failed"] * 2


def test_a_top_up_whose_page_expires_has_failed(stage):
    tenant = stage.tenant(card=None)
    untouched, page = top_up_page(stage, tenant)
    declined, declined_page = top_up_page(stage, tenant)
    with pytest.raises(AssertionError, match="insufficient_funds"):
        stage.simulator.control("POST", f"checkout/{declined_page}", {"card": "4000000000009995"})
    stage.receive()
    assert stage.rows("SELECT DISTINCT state FROM payment_charges") == [{"state": "pending"}]  # for another card
    for each in (page, declined_page):
        stage.sdk.v1.checkout.sessions.expire(each)
    stage.receive()
    assert stage.rows("SELECT id, state FROM payment_charges ORDER BY id") == [
        {"id": top_up, "state": "failed"} for top_up in sorted((untouched, declined))
    ]
    assert stage.bought(tenant) == []
    about = "type = 'checkout.session.expired' AND customer = :c"
    expired = stage.rows(f"SELECT DISTINCT state FROM stripe_events WHERE {about}", c=stage.customer(tenant))
    assert expired == [{"state": "handled"}]


def test_a_payment_that_is_canceled_on_a_page_ends_its_top_up(stage):
    tenant = stage.tenant(card=None)
    canceled, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4000002500003155"})
    stage.sdk.v1.payment_intents.cancel(stage.account.page(page).payment_intent)
    stage.receive()
    assert stage.rows("SELECT id, state FROM payment_charges") == [{"id": canceled, "state": "failed"}]


def test_a_payment_that_succeeds_after_its_top_up_had_failed_is_credited(stage):
    tenant = stage.tenant(card=None)
    top_up, page = top_up_page(stage, tenant)
    stage.change("UPDATE payment_charges SET state = 'failed', failure = 'given up'")
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    stage.receive()
    assert stage.bought(tenant) == [2_500]
    assert stage.rows("SELECT state, failure FROM payment_charges WHERE id = :i", i=top_up) == [
        {"state": "paid", "failure": None}
    ]


@pytest.mark.parametrize("kind", [ChargeTopUp, OpenTopUpPage])
def test_a_top_up_that_an_admin_cancels_has_failed(stage, kind):
    tenant, top_up = stage.tenant(), new_id("top")
    fields = {"charge_id": top_up} if kind is ChargeTopUp else {"request_id": top_up, **URLS}
    stage.enqueue(tenant, kind(amount_cents=2_500, **fields))
    stage.change(
        "UPDATE payment_queues SET stopped_at = now(), stopped_reason = 'a test' WHERE tenant_id = :t", t=tenant
    )
    with unit_of_work(stage.engine) as session:
        queue.resume(session, tenant, cancel=True)
    assert stage.work() == []
    assert stage.value("SELECT state FROM payment_charges WHERE id = :i", i=top_up) == "failed"


@pytest.mark.scenario(148)
def test_the_events_of_an_invoices_payments_in_the_wrong_order_lead_to_the_same_state(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    page, customer = stage.open_page(invoice)["page"], stage.customer(tenant)
    stage.pay_page(page)
    declined, paid = stage.intents(tenant)
    for kind, about, name in (
        ("checkout.session.expired", "checkout.session", page),
        ("payment_intent.succeeded", "payment_intent", paid.id),
        ("payment_intent.canceled", "payment_intent", declined.id),
        ("checkout.session.completed", "checkout.session", page),
        ("payment_intent.succeeded", "payment_intent", paid.id),
    ):
        store(stage, event(stage, kind, about, name, customer))
        stage.events.run_once()
    assert (stage.due(invoice), stage.is_dunned(invoice)) == (0, False)
    assert (stage.charged(tenant), stage.balance("cash")) == ([4_000], 4_000)


def test_a_saved_card_becomes_the_default(stage):
    tenant = stage.tenant(card=None)
    operation = stage.enqueue(tenant, OpenSetupPage(request_id=new_id("req"), **URLS))
    stage.work()
    page = stage.value("SELECT result FROM payment_operations WHERE id = :i", i=operation)["page"]
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    stage.receive()
    customer = stage.account.customer(stage.customer(tenant))
    assert customer.default_payment_method == stage.account.newest_card(customer.id)


@pytest.mark.scenario(152)
def test_unknown_customers_types_and_versions_have_no_effect_and_are_shown(stage):
    tenant = stage.tenant()
    unknown = stage.sdk.v1.customers.create({"name": "a stranger"})
    store(
        stage,
        event(stage, "customer.updated", "customer", unknown.id, unknown.id, id="evt_customer"),
        event(stage, "coupon.created", "coupon", "co_1", None, id="evt_type"),
        event(stage, "payment_intent.succeeded", "payment_intent", "pi_0", stage.customer(tenant), id="evt_object"),
    )
    stage.events.run_once()
    assert states(stage) == dict.fromkeys(["evt_customer", "evt_type", "evt_object"], "ignored")
    notes = stage.rows("SELECT note FROM stripe_events")
    assert all(row["note"] for row in notes)
    with unit_of_work(stage.engine) as session:
        event_store.handle_again(session, "evt_object")
    assert states(stage)["evt_object"] == "stored"


@pytest.mark.scenario(152)
def test_an_event_of_a_newer_version_is_handled_with_an_alarm(stage):
    tenant = stage.tenant(card=None)
    _, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    intent, newer = stage.account.page(page).payment_intent, {"api_version": "2031-01-01.later"}
    store(stage, event(stage, "payment_intent.succeeded", "payment_intent", intent, stage.customer(tenant), **newer))
    stage.events.run_once()
    assert stage.bought(tenant) == [2_500]
    assert stage.alarms() == ["event_version"]


def test_a_payment_of_a_suspended_tenant_waits_for_no_other_event(stage, monkeypatch):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    stage.pass_days(14)
    stage.dunning.run_once()
    page, customer = stage.open_page(invoice)["page"], stage.customer(tenant)
    stage.pay_page(page)
    store(stage, *(event(stage, "customer.updated", "customer", f"cus_{n}", f"cus_{n}") for n in range(200)))
    store(stage, event(stage, "checkout.session.completed", "checkout.session", page, customer))
    entered, leave = threading.Event(), threading.Event()

    def stuck(*_arguments):  # a slow answer of Stripe's holds the thread of all other events
        entered.set()
        assert leave.wait(60)

    monkeypatch.setattr(event_handling, "tenant_of", stuck)
    others = threading.Thread(target=stage.events.run_once)
    others.start()
    assert entered.wait(60)
    monkeypatch.undo()
    try:
        assert stage.events.run_once(types=event_store.PAYMENT_TYPES) == 1
        assert stage.standing(tenant) == "good"
    finally:
        leave.set()
        others.join()


def test_an_event_that_meets_a_defect_is_an_alarm_and_stops_no_other(stage, monkeypatch):
    stage.events._settings = stage.settings.model_copy(update={"payments_event_attempts_max": 1})
    read = stage.account.payment

    def broken(intent: str):
        if intent == "pi_odd":
            raise KeyError("odd")
        return read(intent)

    monkeypatch.setattr(stage.account, "payment", broken)
    for name in ("odd", "other"):
        store(stage, event(stage, "payment_intent.succeeded", "payment_intent", f"pi_{name}", None, id=f"evt_{name}"))
    stage.events.run_once()
    assert states(stage) == {"evt_odd": "failed", "evt_other": "ignored"}
    assert stage.alarms() == ["event_failed"]


def test_an_event_that_cannot_be_handled_waits_and_is_left_to_an_admin(stage):
    tenant = stage.tenant()
    about = ("payment_intent", "pi_1", stage.customer(tenant))
    store(stage, event(stage, "payment_intent.succeeded", *about, id="evt_1"))
    stage.events._settings = stage.settings.model_copy(update={"payments_event_attempts_max": 3})
    for attempt in range(3):
        stage.fail("error_before", "/v1/payment_intents/pi_1", method="GET")
        assert stage.events.run_once() == 1, attempt
        stage.change("UPDATE stripe_events SET next_attempt_at = clock_timestamp()")
    assert states(stage) == {"evt_1": "failed"}
    assert stage.alarms() == ["event_failed"]


@pytest.mark.scenario(154)
def test_events_of_two_days_without_webhooks_are_listed_and_handled(own_stage):
    stage = own_stage
    tenant = stage.tenant(card=None)
    stage.events.catch_up()
    _, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    stage.simulator.control("POST", "clock", {"advance_s": 2 * 86_400})
    stage.offset += timedelta(days=2)
    assert stage.events.catch_up() > 0
    assert stage.events.catch_up() == 0
    while stage.events.run_once():
        pass
    assert stage.bought(tenant) == [2_500]


def test_more_events_than_one_list_reads_are_listed_in_parts(own_stage):
    stage = own_stage
    tenant = stage.tenant()
    for _ in range(6):
        stage.invoice(tenant, 700)
        assert stage.work() == ["done"]
        stage.simulator.control("POST", "clock", {"advance_s": 5})  # one second can hold more events than a list reads
        stage.offset += timedelta(seconds=5)
    stage.account._most = 4
    listed = stage.sdk.v1.events.list({"limit": 100})
    wanted = len([each for each in listed.auto_paging_iter() if each.type in event_store.HANDLED_TYPES])
    assert wanted > 4
    stage.change("UPDATE stripe_events_listed SET listed_until = clock_timestamp()")
    assert stage.events.catch_up() == wanted
