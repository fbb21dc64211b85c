"""Invoices of which a part is paid, credited or ended outside Stripe while Stripe collects them. Stripe asks for what
is still due; nothing is paid twice or lost.
"""

import pytest

from billing.invoices import credit_notes, endings
from billing.invoices.payments import record_payment
from billing.payments import resuming
from billing.payments.operations import PayInvoice
from core.db import unit_of_work
from core.ids import new_id
from core.money import cents_to_nanos

pytestmark = pytest.mark.timeout(120)


def pay_by_hand(stage, invoice, cents: int, reference: str = "transfer 17") -> None:
    with unit_of_work(stage.engine) as session:
        record_payment(session, invoice_id=invoice.id, amount_cents=cents, source="manual", reference=reference)


def credit(stage, invoice, cents: int, *, to: str = "amount_due") -> None:
    with unit_of_work(stage.engine) as session:
        credit_notes.issue_credit_note(session, invoice_id=invoice.id, to=to, reason="Outage", amount_cents=cents)


def charged(payments, tenant: str) -> list[int]:
    charges = payments.sdk.v1.charges.list({"customer": payments.customer(tenant)}).data
    return [charge.amount - charge.amount_refunded for charge in charges if charge.paid]


def pay_open(payments, tenant: str) -> None:
    """The owner saves a card, which is tried at once."""
    payments.save_card(tenant, "visa")
    payments.receive()
    payments.dunning.run_once()
    payments.work()
    payments.receive()


def assert_settled(collected, tenant: str, invoice) -> None:
    assert collected.stage.invoice(invoice.id).invoice.status == "paid"
    assert collected.balance("receivable", tenant) == 0
    assert collected.payments.stopped(tenant) is None


@pytest.mark.parametrize("pushed_before", [False, True])
def test_what_is_paid_by_hand_is_not_charged_at_stripe(collected, pushed_before):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None if pushed_before else "visa")
    if pushed_before:
        payments.work()
    pay_by_hand(collected.stage, invoice, 200)
    payments.work()
    if pushed_before:
        assert payments.of(invoice.id).amount_remaining == 400
        pay_open(payments, tenant)
    payments.receive()
    assert charged(payments, tenant) == [400]
    assert (payments.of(invoice.id).status, payments.of(invoice.id).amount_paid) == ("paid", 400)
    assert_settled(collected, tenant, invoice)
    assert collected.balance("cash") == cents_to_nanos(600)
    assert collected.balance("customer_balance", tenant) == 0
    assert payments.alarms() == []


def test_several_parts_and_a_credit_note_are_deducted_once_each(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 100, "transfer 1")
    credit(collected.stage, invoice, 50)
    pay_by_hand(collected.stage, invoice, 100, "transfer 2")
    payments.work()
    found = payments.of(invoice.id)
    notes = payments.sdk.v1.credit_notes.list({"invoice": found.id}).data
    assert sorted(note.total for note in notes) == [50, 100, 100]
    assert found.amount_remaining == 350
    pay_open(payments, tenant)
    assert charged(payments, tenant) == [350]
    assert_settled(collected, tenant, invoice)


def test_the_rest_of_an_invoice_that_is_paid_by_hand_ends_its_collection(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 200, "transfer 1")
    payments.work()
    pay_by_hand(collected.stage, invoice, 400, "transfer 2")
    payments.work()
    pay_open(payments, tenant)
    assert charged(payments, tenant) == []
    assert payments.of(invoice.id).status == "paid"
    assert_settled(collected, tenant, invoice)


@pytest.mark.parametrize("cents", [600, 200])
def test_an_attempt_that_waits_does_not_charge_what_was_paid_meanwhile(collected, cents):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.save_card(tenant, "visa")
    payments.enqueue(tenant, PayInvoice(invoice_id=invoice.id, attempt=2))
    pay_by_hand(collected.stage, invoice, cents)
    payments.work()
    assert sum(charged(payments, tenant)) == 600 - cents
    payments.receive()
    assert_settled(collected, tenant, invoice)
    assert collected.balance("customer_balance", tenant) == 0


@pytest.mark.parametrize("cents", [600, 200])
def test_a_push_that_was_cut_off_does_not_charge_what_was_paid_meanwhile(collected, cents):
    payments = collected.payments
    tenant, invoice = collected.invoice()
    payments.fail("error_after", "/v1/invoices/in_", method="POST")  # it is finalized, and the answer is lost
    assert payments.work(1) == ["postponed"]
    assert payments.of(invoice.id).status == "open"
    pay_by_hand(collected.stage, invoice, cents)
    for _ in range(3):
        payments.work_later()
    payments.receive()
    assert charged(payments, tenant) == ([400] if cents == 200 else [])
    assert payments.of(invoice.id).status == "paid"
    assert_settled(collected, tenant, invoice)


def test_the_customer_who_pays_at_the_same_moment_has_the_surplus_on_the_balance(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 200)
    card = payments.save_card(tenant, "visa")
    payments.account.pay_invoice(payments.of(invoice.id).id, key=new_id("req"), payment_method=card)
    assert payments.work() == ["done"]
    payments.receive()
    assert payments.sdk.v1.credit_notes.list({"invoice": payments.of(invoice.id).id}).data == []
    assert collected.balance("customer_balance", tenant) == -cents_to_nanos(200)
    assert payments.alarms() == ["overpaid"]
    assert_settled(collected, tenant, invoice)


@pytest.mark.parametrize("kind", ["error_after", "error_before", "timeout_after"])
def test_a_lost_answer_to_a_deduction_does_not_deduct_twice(collected, kind):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 200)
    pay_by_hand(collected.stage, invoice, 100, "transfer 18")
    payments.fail(kind, "/v1/credit_notes", seconds=4)
    for _ in range(5):
        payments.work_later()
    assert payments.of(invoice.id).amount_remaining == 300
    pay_open(payments, tenant)
    assert charged(payments, tenant) == [300]


def test_a_rest_under_the_minimum_charge_is_carried_to_the_next_invoice(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 580)
    payments.work()
    assert (payments.of(invoice.id).status, payments.case(invoice.id)["state"]) == ("paid", "ended")
    payments.save_card(tenant, "visa")
    following = collected.bill(tenant)
    payments.work()
    payments.receive()
    assert charged(payments, tenant) == [620]
    for each in (invoice, following):
        assert_settled(collected, tenant, each)


@pytest.mark.parametrize("how", ["void", "paid by hand", "written off", "paid by hand before the push"])
def test_what_is_collected_together_with_an_invoice_that_ends_is_collected_later(collected, how):
    payments = collected.payments
    tenant, small = collected.invoice(card=None, tokens=200_000)  # 12 cents
    invoice = collected.bill(tenant)
    if how != "paid by hand before the push":
        payments.work()
        assert payments.of(invoice.id).total == 612
    if how == "void":
        with unit_of_work(collected.stage.engine) as session:
            endings.void_invoice(session, invoice_id=invoice.id, reason="wrong plan", write_off=True)
    elif how == "written off":
        with unit_of_work(collected.stage.engine) as session:
            endings.write_off(session, invoice_id=invoice.id, reason="bankrupt")
    else:
        pay_by_hand(collected.stage, invoice, 600)
    payments.work()
    payments.save_card(tenant, "visa")
    following = collected.bill(tenant)
    payments.work()
    payments.receive()
    assert charged(payments, tenant) == [612]
    for each in (small, following):
        assert_settled(collected, tenant, each)


def test_a_small_invoice_that_is_credited_and_paid_within_another_is_deducted_once(collected):
    payments = collected.payments
    tenant, small = collected.invoice(card=None, tokens=400_000)  # 24 cents
    invoice = collected.bill(tenant)
    payments.work()
    credit(collected.stage, small, 4)
    pay_by_hand(collected.stage, small, 20)
    payments.work()
    assert payments.of(invoice.id).amount_remaining == 600
    pay_open(payments, tenant)
    assert charged(payments, tenant) == [600]
    for each in (small, invoice):
        assert_settled(collected, tenant, each)


def test_notes_on_an_invoice_that_was_paid_partly_by_hand_do_not_stop_the_queue(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    pay_by_hand(collected.stage, invoice, 200)
    payments.work()
    pay_open(payments, tenant)
    credit(collected.stage, invoice, 300, to="balance")
    credit(collected.stage, invoice, 250, to="refund")
    payments.work()
    payments.receive()
    assert payments.stopped(tenant) is None
    assert charged(payments, tenant) == [150]
    assert collected.balance("cash") == cents_to_nanos(350)


def test_credit_that_lowered_an_invoice_to_nothing_before_its_push_does_not_stop_the_queue(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice()
    pay_by_hand(collected.stage, invoice, 300)
    credit(collected.stage, invoice, 300)
    payments.work()
    assert payments.stopped(tenant) is None
    assert charged(payments, tenant) == []
    with pytest.raises(Exception, match="has not stopped"), unit_of_work(collected.stage.engine) as session:
        resuming.resume(session, tenant, cancel=False)
