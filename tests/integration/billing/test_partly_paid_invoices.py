"""Invoices of which a part is paid, credited or ended outside Stripe. Cards are charged for what is still due; nothing
is paid twice or lost.
"""

import pytest

from billing.invoicing import endings
from billing.payments.operations import CollectInvoice
from core.db import unit_of_work
from core.money import cents_to_nanos

pytestmark = pytest.mark.timeout(120)


def pay_open(payments, tenant: str) -> None:
    """The owner saves a card, which is tried at once."""
    payments.save_card(tenant, "visa")
    payments.receive()
    payments.dunning.run_once()
    payments.work()
    payments.receive()


def assert_settled(collected, tenant: str, invoice) -> None:
    assert collected.stage.invoice(invoice.id).status == "paid"
    assert collected.balance("receivable", tenant) == 0
    assert collected.payments.stopped(tenant) is None


@pytest.mark.parametrize("tried_before", [False, True])
def test_what_is_paid_by_hand_is_not_charged(collected, tried_before):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None if tried_before else "visa")
    if tried_before:
        payments.work()
    payments.pay_by_hand(invoice.id, 200)
    payments.work()
    if tried_before:
        pay_open(payments, tenant)
    payments.receive()
    assert payments.charged(tenant) == [400]
    assert_settled(collected, tenant, invoice)
    assert collected.balance("cash") == cents_to_nanos(600)
    assert collected.balance("customer_balance", tenant) == 0
    assert payments.alarms() == []


def test_several_parts_and_a_credit_note_each_lower_what_is_charged(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.pay_by_hand(invoice.id, 100)
    payments.credit(invoice.id, 50, to="amount_due")
    payments.pay_by_hand(invoice.id, 100)
    pay_open(payments, tenant)
    assert payments.charged(tenant) == [350]
    assert_settled(collected, tenant, invoice)


@pytest.mark.parametrize("cents", [600, 200])
def test_an_attempt_that_waits_does_not_charge_what_was_paid_meanwhile(collected, cents):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.save_card(tenant, "visa")
    payments.enqueue(tenant, CollectInvoice(invoice_id=invoice.id, attempt=2))
    payments.pay_by_hand(invoice.id, cents)
    payments.work()
    assert sum(payments.charged(tenant)) == 600 - cents
    payments.receive()
    assert_settled(collected, tenant, invoice)
    assert collected.balance("customer_balance", tenant) == 0


def test_a_rest_under_the_minimum_charge_is_paid_with_the_next_invoice(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.pay_by_hand(invoice.id, 580)
    payments.save_card(tenant, "visa")
    following = collected.bill(tenant)
    payments.work()
    payments.receive()
    assert payments.charged(tenant) == [620]
    for each in (invoice, following):
        assert_settled(collected, tenant, each)


@pytest.mark.parametrize("how", ["void", "paid by hand", "written off"])
def test_what_was_tried_together_with_an_invoice_that_ends_is_paid_later(collected, how):
    payments = collected.payments
    tenant, small = collected.invoice(card=None, tokens=200_000)  # 12 cents
    invoice = collected.bill(tenant)
    payments.work()
    if how == "void":
        with unit_of_work(collected.stage.engine) as session:
            endings.void_invoice(session, invoice_id=invoice.id, reason="wrong plan", write_off=True)
    elif how == "written off":
        with unit_of_work(collected.stage.engine) as session:
            endings.write_off(session, invoice_id=invoice.id, reason="bankrupt")
    else:
        payments.pay_by_hand(invoice.id, 600)
    payments.save_card(tenant, "visa")
    following = collected.bill(tenant)
    payments.work()
    payments.receive()
    assert payments.charged(tenant) == [612]
    for each in (small, following):
        assert_settled(collected, tenant, each)


def test_notes_on_an_invoice_that_was_paid_partly_by_hand_do_not_stop_the_queue(collected):
    payments = collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.pay_by_hand(invoice.id, 200)
    pay_open(payments, tenant)
    payments.credit(invoice.id, 300, to="balance")
    payments.credit(invoice.id, 250)
    payments.work()
    payments.receive()
    assert payments.stopped(tenant) is None
    assert payments.charged(tenant) == [150]
    assert collected.balance("cash") == cents_to_nanos(350)
