"""Stripe's events: stored once, handled once, in any order, and from the object that is fetched again."""

import threading
from datetime import timedelta

import pytest

from billing.payments import event_handling, event_store, resuming
from billing.payments.operations import ChargeTopUp, OpenSetupPage, OpenTopUpPage
from billing.stripe_objects import StripeEvent
from core.db import database_now, unit_of_work
from core.ids import new_id

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


def credit(stage, tenant: str) -> list[int]:
    rows = stage.rows("SELECT cents FROM test_credit WHERE tenant_id = :t ORDER BY reference", t=tenant)
    return [row["cents"] for row in rows]


def states(stage) -> dict[str, str]:
    return {row["id"]: row["state"] for row in stage.rows("SELECT id, state FROM stripe_events")}


def event(stage, event_type: str, object_kind: str, object_id: str, customer: str | None, **changes) -> StripeEvent:
    with unit_of_work(stage.engine) as session:
        now = database_now(session)
    values = {"id": f"evt_{new_id('req')}", "type": event_type, "created": now, "api_version": "2026-10-28.endive"}
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
    assert credit(stage, tenant) == [2_500]
    assert stage.value("SELECT state FROM top_ups WHERE id = :i", i=top_up) == "paid"
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
    workers = [threading.Thread(target=stage.events.run_once) for _ in range(2)]
    stage.events._settings = stage.settings.model_copy(update={"payments_events_batch_max": 4})
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    while stage.events.run_once():
        pass
    assert credit(stage, tenant) == [2_500]
    assert list(states(stage).values()) == ["handled"] * 8


def test_a_page_that_was_not_paid_grants_nothing(stage):
    tenant = stage.tenant(card=None)
    _, page = top_up_page(stage, tenant)
    with pytest.raises(AssertionError, match="insufficient_funds"):
        stage.simulator.control("POST", f"checkout/{page}", {"card": "4000000000009995"})
    stage.receive()
    assert credit(stage, tenant) == []


@pytest.mark.scenario(85)
@pytest.mark.parametrize(
    ("card", "state"), [("chargeDeclinedInsufficientFunds", "failed"), ("authenticationRequired", "needs_owner")]
)
def test_a_top_up_with_a_card_that_does_not_pay_grants_nothing(stage, card, state):
    tenant = stage.tenant(card)
    top_up = new_id("top")
    stage.enqueue(tenant, ChargeTopUp(top_up_id=top_up, amount_cents=2_500))
    assert stage.work() == ["failed"]
    stage.receive()
    assert credit(stage, tenant) == []
    assert stage.value("SELECT state FROM top_ups WHERE id = :i", i=top_up) == state
    assert stage.notices(tenant) == ["top_up.failed"]


def test_a_top_up_that_stripe_refuses_has_failed_and_blocks_no_other(stage):
    tenant = stage.tenant()
    stage.change("UPDATE payment_queues SET customer_id = 'cus_never_was' WHERE tenant_id = :t", t=tenant)
    charged, page = new_id("top"), new_id("top")
    stage.enqueue(tenant, ChargeTopUp(top_up_id=charged, amount_cents=2_500))
    stage.enqueue(tenant, OpenTopUpPage(request_id=page, amount_cents=2_500, **URLS))
    assert stage.work() == ["failed"] * 2
    assert stage.value("SELECT count(*) FROM top_ups WHERE state = 'failed'") == 2
    assert stage.notices(tenant) == ["top_up.failed"] * 2


def test_a_top_up_whose_page_expires_has_failed(stage):
    tenant = stage.tenant(card=None)
    untouched, page = top_up_page(stage, tenant)
    declined, declined_page = top_up_page(stage, tenant)
    with pytest.raises(AssertionError, match="insufficient_funds"):
        stage.simulator.control("POST", f"checkout/{declined_page}", {"card": "4000000000009995"})
    stage.receive()
    assert stage.rows("SELECT DISTINCT state FROM top_ups") == [{"state": "pending"}]  # another card may be tried
    for each in (page, declined_page):
        stage.sdk.v1.checkout.sessions.expire(each)
    stage.receive()
    assert stage.rows("SELECT id, state FROM top_ups ORDER BY id") == [
        {"id": top_up, "state": "failed"} for top_up in sorted((untouched, declined))
    ]
    assert credit(stage, tenant) == []
    expired = stage.rows("SELECT DISTINCT state FROM stripe_events WHERE type = 'checkout.session.expired'")
    assert expired == [{"state": "handled"}]


def test_a_payment_that_fails_or_is_canceled_later_ends_its_top_up(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    charged = new_id("top")
    stage.enqueue(tenant, ChargeTopUp(top_up_id=charged, amount_cents=2_500))
    stage.work()
    stage.change("UPDATE top_ups SET state = 'pending', failure = NULL")  # as if the payment had been on its way
    stage.receive()
    canceled, page = top_up_page(stage, tenant)
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4000002500003155"})
    stage.sdk.v1.payment_intents.cancel(stage.account.page(page).payment_intent)
    stage.receive()
    assert stage.rows("SELECT id, state FROM top_ups ORDER BY created_at") == [
        {"id": charged, "state": "failed"},
        {"id": canceled, "state": "failed"},
    ]


def test_a_payment_that_succeeds_after_its_top_up_had_failed_is_credited(stage):
    tenant = stage.tenant(card=None)
    top_up, page = top_up_page(stage, tenant)
    stage.change("UPDATE top_ups SET state = 'failed', failure = 'given up'")
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    stage.receive()
    assert credit(stage, tenant) == [2_500]
    assert stage.rows("SELECT state, failure FROM top_ups WHERE id = :i", i=top_up) == [
        {"state": "paid", "failure": None}
    ]


@pytest.mark.parametrize("kind", [ChargeTopUp, OpenTopUpPage])
def test_a_top_up_that_an_admin_cancels_has_failed(stage, kind):
    tenant, top_up = stage.tenant(), new_id("top")
    fields = {"top_up_id": top_up} if kind is ChargeTopUp else {"request_id": top_up, **URLS}
    stage.enqueue(tenant, kind(amount_cents=2_500, **fields))
    stage.change(
        "UPDATE payment_queues SET stopped_at = now(), stopped_reason = 'a test' WHERE tenant_id = :t", t=tenant
    )
    with unit_of_work(stage.engine) as session:
        resuming.resume(session, tenant, cancel=True)
    assert stage.work() == []
    assert stage.value("SELECT state FROM top_ups WHERE id = :i", i=top_up) == "failed"


@pytest.mark.scenario(148)
def test_an_invoices_events_in_the_wrong_order_lead_to_the_same_state(stage):
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    found = stage.of(invoice)
    stage.sdk.v1.payment_methods.attach("pm_card_visa", {"customer": stage.customer(tenant)})
    card = stage.account.cards(stage.customer(tenant))[0].id
    stage.account.pay_invoice(found.id, key=new_id("req"), payment_method=card)
    for kind in ("invoice.paid", "invoice.payment_action_required", "invoice.payment_failed", "invoice.paid"):
        store(stage, event(stage, kind, "invoice", found.id, stage.customer(tenant)))
        stage.events.run_once()
    assert (stage.due(invoice), stage.case(invoice)["state"]) == (0, "paid")
    assert stage.rows("SELECT amount_cents FROM test_payments") == [{"amount_cents": 4_000}]


@pytest.mark.scenario(142)
def test_what_is_paid_too_much_is_flagged(stage):
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 12_000)
    stage.work()
    stage.change("UPDATE test_invoices SET due_cents = 10000 WHERE invoice_id = :i", i=invoice)
    stage.save_card(tenant, "visa")
    stage.account.pay_invoice(stage.of(invoice).id, key=new_id("req"))
    stage.receive()
    assert stage.rows("SELECT amount_cents, surplus_cents FROM test_payments") == [
        {"amount_cents": 12_000, "surplus_cents": 2_000}
    ]
    assert stage.alarms() == ["overpaid"]


def test_a_saved_card_becomes_the_default(stage):
    tenant = stage.tenant(card=None)
    operation = stage.enqueue(tenant, OpenSetupPage(request_id=new_id("req"), **URLS))
    stage.work()
    page = stage.value("SELECT result FROM payment_operations WHERE id = :i", i=operation)["page"]
    stage.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    stage.receive()
    customer = stage.account.customer(stage.customer(tenant))
    assert customer.default_payment_method == stage.account.cards(customer.id)[0].id


@pytest.mark.scenario(152)
def test_unknown_customers_types_and_versions_have_no_effect_and_are_shown(stage):
    tenant = stage.tenant()
    unknown = stage.sdk.v1.customers.create({"name": "a stranger"})
    store(
        stage,
        event(stage, "customer.updated", "customer", unknown.id, unknown.id, id="evt_customer"),
        event(stage, "coupon.created", "coupon", "co_1", None, id="evt_type"),
        event(stage, "invoice.paid", "invoice", "in_never_was", stage.customer(tenant), id="evt_object"),
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
    assert credit(stage, tenant) == [2_500]
    assert stage.alarms() == ["event_version"]


def test_a_payment_of_a_suspended_tenant_waits_for_no_other_event(stage, monkeypatch):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    stage.pass_days(14)
    stage.dunning.run_once()
    found = stage.of(invoice)
    stage.sdk.v1.invoices.pay(found.id, {"paid_out_of_band": True})
    customer = stage.customer(tenant)
    store(stage, *(event(stage, "customer.updated", "customer", f"cus_{n}", f"cus_{n}") for n in range(200)))
    store(stage, event(stage, "invoice.paid", "invoice", found.id, customer))
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


@pytest.mark.parametrize("error", [AssertionError("odd"), KeyError("odd"), RuntimeError("odd")])
def test_an_event_that_meets_a_defect_is_an_alarm_and_stops_no_other(stage, monkeypatch, error):
    stage.events._settings = stage.settings.model_copy(update={"payments_event_attempts_max": 1})
    read = stage.account.invoice

    def broken(invoice_id: str):
        if invoice_id == "in_odd":
            raise error
        return read(invoice_id)

    monkeypatch.setattr(stage.account, "invoice", broken)
    store(stage, event(stage, "invoice.paid", "invoice", "in_odd", None, id="evt_odd"))
    store(stage, event(stage, "invoice.paid", "invoice", "in_other", None, id="evt_other"))
    stage.events.run_once()
    assert states(stage) == {"evt_odd": "failed", "evt_other": "ignored"}
    assert stage.alarms() == ["event_failed"]


def test_an_event_that_cannot_be_handled_waits_and_is_left_to_an_admin(stage):
    tenant = stage.tenant()
    store(stage, event(stage, "invoice.paid", "invoice", "in_1", stage.customer(tenant), id="evt_1"))
    stage.events._settings = stage.settings.model_copy(update={"payments_event_attempts_max": 3})
    for attempt in range(3):
        stage.fail("error_before", "/v1/invoices/in_1", method="GET")
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
    assert credit(stage, tenant) == [2_500]


def test_more_events_than_one_list_reads_are_listed_in_parts(own_stage):
    stage = own_stage
    bounded = stage.account._settings.model_copy(update={"stripe_lookup_objects_max": 10})
    tenant = stage.tenant()
    for _ in range(6):
        stage.invoice(tenant, 700)
        assert stage.work() == ["done"]
        stage.simulator.control("POST", "clock", {"advance_s": 5})  # one second can hold more events than a list reads
        stage.offset += timedelta(seconds=5)
    stage.account._most = bounded.stripe_lookup_objects_max
    listed = stage.sdk.v1.events.list({"limit": 100})
    wanted = len([each for each in listed.auto_paging_iter() if each.type in event_store.HANDLED_TYPES])
    assert wanted > 10
    stage.change("UPDATE stripe_events_listed SET listed_until = clock_timestamp()")
    assert stage.events.catch_up() == wanted
