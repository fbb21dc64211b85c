"""A charge covers the amount that is due of the tenant's invoices when the attempt begins, or credit."""

import re

import pytest

from billing.invoicing import endings
from billing.payments import queue
from billing.payments.operations import ChargeTopUp, CollectInvoice, Refund
from billing.stripe.objects import TOP_UP_CENTS_MAX
from core.db import unit_of_work
from core.errors import InvalidRequest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.scenario(130)
@pytest.mark.scenario(132)
def test_an_invoice_of_300_lines_is_one_payment_over_what_is_due(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, *[10] * 299, 571, -60)
    assert stage.work() == ["done"]
    (intent,) = stage.intents(tenant)
    assert (intent.amount, intent.status) == (3_501, "succeeded")
    assert re.fullmatch(r"Invoice \S+", intent.description)
    charge = stage.rows("SELECT id, covers, state FROM payment_charges WHERE invoice_id = :i", i=invoice)
    assert charge == [{"id": intent.metadata["tenora_id"], "covers": {invoice: 3_501}, "state": "paid"}]
    assert (stage.due(invoice), stage.balance("cash"), stage.case(invoice)) == (0, 3_501, None)


@pytest.mark.scenario(138)
def test_amounts_under_the_minimum_charge_are_paid_with_the_next_invoice(stage):
    tenant = stage.tenant()
    small = stage.invoice(tenant, 12)
    assert stage.work() == ["done"]
    assert stage.intents(tenant) == []
    following = stage.invoice(tenant, 700)
    assert stage.work() == ["done"]
    assert stage.charged(tenant) == [712]
    assert (stage.due(small), stage.due(following)) == (0, 0)


def test_a_small_invoice_is_voided_or_credited_before_it_is_charged(stage):
    tenant = stage.tenant()
    voided, credited = stage.invoice(tenant, 12), stage.invoice(tenant, 20)
    with unit_of_work(stage.engine) as session:
        endings.void_invoice(session, invoice_id=voided, reason="wrong")
    stage.credit(credited, 5, to="amount_due")
    stage.invoice(tenant, 100)
    stage.work()
    assert stage.charged(tenant) == [115]


def test_an_invoice_of_which_nothing_is_due_is_not_charged(stage):
    tenant = stage.tenant()
    stage.invoice(tenant, 500, -500)
    assert stage.work() == []


def test_what_ends_before_its_turn_is_not_charged(stage):
    tenant = stage.tenant()
    small, large = stage.invoice(tenant, 12), stage.invoice(tenant, 700)
    stage.pay_by_hand(large, 700)
    assert set(stage.work()) == {"done"}
    assert stage.intents(tenant) == []
    stage.invoice(tenant, 100)
    stage.work()
    assert stage.charged(tenant) == [112]
    assert stage.due(small) == 0


@pytest.mark.scenario(144)
def test_after_the_customer_was_deleted_nothing_is_created_and_an_admin_hears(stage):
    tenant = stage.tenant()
    stage.sdk.v1.customers.delete(stage.customer(tenant))
    stage.invoice(tenant, 700)
    assert stage.work() == ["stopped"]
    assert "was deleted at Stripe" in stage.stopped(tenant)
    assert "customer_deleted" in stage.alarms()
    stage.pass_days(3)
    assert stage.work() == []


def test_less_that_is_due_after_an_attempt_that_was_not_sent_is_all_that_is_charged(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.fail("rate_limit", "/v1/payment_intents")
    assert stage.work(1) == ["postponed"]
    stage.pay_by_hand(invoice, 200)
    assert stage.work_later() == ["done"]
    assert stage.charged(tenant) == [500]
    states = stage.rows("SELECT amount_cents, state FROM payment_charges ORDER BY id")
    assert [tuple(each.values()) for each in states] == [(700, "failed"), (500, "paid")]


def test_more_that_was_charged_than_is_due_when_the_answer_comes_is_on_the_balance(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.fail("timeout_after", "/v1/payment_intents", seconds=4)
    assert stage.work(1) == ["postponed"]
    stage.pay_by_hand(invoice, 200)
    assert stage.work_later() == ["done"]
    assert stage.charged(tenant) == [700]
    assert stage.balance("customer_balance", tenant) == -200
    assert stage.alarms() == ["overpaid"]


def test_an_operation_is_queued_once_for_each_intention(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    first = stage.value("SELECT id FROM payment_operations WHERE kind = 'collect_invoice'")
    assert stage.enqueue(tenant, CollectInvoice(invoice_id=invoice)) == first


def test_what_was_asked_of_stripe_cannot_be_changed_or_removed(stage):
    tenant = stage.tenant()
    stage.invoice(tenant, 700)
    stage.work()
    for statement in (
        "UPDATE payment_operations SET content = '{}'",
        "UPDATE payment_operations SET dedupe_key = 'x'",
        "UPDATE payment_operations SET object_id = 'cus_other'",
        "UPDATE payment_operations SET idempotency_key = 'other'",
        "DELETE FROM payment_operations",
        "UPDATE payment_charges SET amount_cents = 1",
        "UPDATE payment_charges SET state = 'failed'",
        "DELETE FROM payment_charges",
    ):
        with pytest.raises(Exception, match=r"frozen|written once"):
            stage.change(statement)
    assert stage.customer(tenant)


def test_an_invoice_that_waited_for_weeks_is_not_charged_without_an_admin(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.pass_days(8)
    assert stage.work() == ["stopped"]
    assert stage.alarms() == ["collection_old"]
    with unit_of_work(stage.engine) as session:
        queue.resume(session, tenant, cancel=False)
    assert stage.work() == ["done"]
    assert stage.due(invoice) == 0


def test_a_collection_that_an_admin_cancels_charges_nothing(stage):
    tenant = stage.tenant()
    small, large = stage.invoice(tenant, 12), stage.invoice(tenant, 700)
    stage.pass_days(8)
    for _ in range(2):
        assert stage.work() == ["stopped"]
        with unit_of_work(stage.engine) as session:
            queue.resume(session, tenant, cancel=True)
    stage.pass_days(-8)
    stage.invoice(tenant, 100)
    assert stage.work() == ["done"]
    assert stage.charged(tenant) == [112]
    assert (stage.due(small), stage.due(large)) == (0, 700)


def test_an_operation_that_could_not_be_read_again_is_refused_before_it_is_queued(stage):
    tenant = stage.tenant()
    with pytest.raises(InvalidRequest, match="amount_cents"):
        stage.enqueue(tenant, ChargeTopUp(charge_id="top_1", amount_cents=TOP_UP_CENTS_MAX + 1))
    assert stage.value("SELECT count(*) FROM payment_charges") == 0
    assert stage.enqueue(tenant, ChargeTopUp(charge_id="top_1", amount_cents=TOP_UP_CENTS_MAX))


def test_a_refund_may_be_larger_than_a_charge(stage):
    tenant = stage.tenant()
    stage.enqueue(tenant, Refund(refund_id="cn_1", invoice_id="inv_1", amount_cents=100_000_000_000))
    assert stage.work() == ["done"]
    assert stage.alarms() == ["refund_to_transfer"]


def test_a_stored_operation_that_cannot_be_read_stops_its_own_queue_only(stage):
    one, other = stage.tenant(), stage.tenant()
    stage.change(
        "INSERT INTO payment_operations (id, tenant_id, kind, content, dedupe_key, state, attempts, created_at)"
        " VALUES ('pop_unreadable', :t, 'pay_later', '{\"kind\": \"pay_later\"}', 'x', 'pending', 0, now())",
        t=one,
    )
    stage.change("UPDATE payment_queues SET next_attempt_at = now() - interval '1 hour' WHERE tenant_id = :t", t=one)
    paid = stage.invoice(other, 700)
    assert stage.work() == []  # the unreadable one waited longest
    assert stage.work() == ["done"]
    assert stage.due(paid) == 0
    assert "pay_later" in stage.stopped(one)
    assert stage.alarms() == ["operation_unreadable"]
    with unit_of_work(stage.engine) as session:
        queue.resume(session, one, cancel=True)
    following = stage.invoice(one, 700)
    assert stage.work() == ["done"]
    assert stage.due(following) == 0


def unpaid(stage) -> tuple[str, str]:
    """A tenant without a card, and its invoice of $40.00 whose first attempt failed."""
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 4_000)
    assert stage.work() == ["failed"]
    return tenant, invoice


def test_a_page_over_the_same_amount_is_opened_once_and_over_another_amount_is_closed(stage):
    _, invoice = unpaid(stage)
    first, again = stage.open_page(invoice), stage.open_page(invoice)
    assert first == again
    stage.pay_by_hand(invoice, 1_000)
    other = stage.open_page(invoice)
    assert other["page"] != first["page"]
    assert stage.account.page(first["page"]).status == "expired"
    states = stage.rows("SELECT state FROM payment_charges WHERE on_page ORDER BY id")
    assert [each["state"] for each in states] == ["failed", "pending"]


def test_an_open_page_is_closed_before_the_card_is_charged(stage):
    tenant, invoice = unpaid(stage)
    page = stage.open_page(invoice)["page"]
    stage.save_card(tenant, "visa")
    stage.receive()
    stage.dunning.run_once()
    assert stage.work() == ["done"]
    assert stage.account.page(page).status == "expired"
    assert (stage.charged(tenant), stage.due(invoice)) == ([4_000], 0)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_page_that_was_paid_before_an_attempt_is_booked_and_the_card_is_not_charged(stage, monkeypatch, at_once):
    tenant, invoice = unpaid(stage)
    page = stage.open_page(invoice)["page"]
    stage.save_card(tenant, "visa")
    stage.receive()
    stage.dunning.run_once()
    close = stage.account.close_page

    def too_late(*arguments, **options):
        stage.pay_page(page)
        return close(*arguments, **options)

    if at_once:
        monkeypatch.setattr(stage.account, "close_page", too_late)
    else:
        stage.pay_page(page)
    assert stage.work() == ["done"]
    stage.receive()
    assert (stage.charged(tenant), stage.due(invoice)) == ([4_000], 0)
    assert stage.balance("customer_balance", tenant) == 0


def test_a_page_whose_answer_was_lost_is_found_and_opened_once(stage):
    tenant, invoice = unpaid(stage)
    stage.fail("error_after", "/v1/checkout/sessions", method="POST")
    stage.open_page(invoice)
    for _ in range(3):
        stage.work_later()
    page = stage.open_page(invoice)
    listed = stage.sdk.v1.checkout.sessions.list({"customer": stage.customer(tenant)}).data
    assert [each.id for each in listed] == [page["page"]]


def test_what_was_written_off_can_be_paid_by_its_owner(stage):
    tenant, invoice = unpaid(stage)
    with unit_of_work(stage.engine) as session:
        endings.write_off(session, invoice_id=invoice, reason="gone")
    stage.pay_page(stage.open_page(invoice)["page"])
    stage.receive()
    assert stage.read(invoice).status == "paid"
    assert (stage.charged(tenant), stage.balance("bad_debt")) == ([4_000], 0)
