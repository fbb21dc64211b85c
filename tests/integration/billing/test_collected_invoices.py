"""Payments with the real rooms of invoices and credits: a closed period is collected, credited and refunded, and the
ledger says the same as Stripe.
"""

import pytest

from billing.invoicing import credit_notes, endings
from billing.payments.operations import ChargeTopUp
from billing.payments.settlement import record_manual_payment
from core.db import unit_of_work
from core.errors import Conflict
from core.ids import new_id
from core.money import cents_to_nanos

pytestmark = pytest.mark.timeout(120)


@pytest.mark.scenario(130)
def test_a_closed_period_is_paid_at_stripe_and_in_the_ledger(collected):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice()
    assert payments.work() == ["done"]
    payments.receive()
    assert payments.charged(tenant) == [600]
    after = stage.invoice(invoice.id)
    assert (after.status, after.amount_due_cents, after.paid_cents) == ("paid", 0, 600)
    assert collected.balance("receivable", tenant) == 0
    assert collected.balance("cash") == cents_to_nanos(600)


@pytest.mark.scenario(115)
def test_a_credit_note_to_refund_returns_the_money_once(collected):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice()
    payments.work()
    with unit_of_work(stage.engine) as session:
        credit_notes.issue_credit_note(
            session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=150, idempotency="one"
        )
    assert payments.work() == ["done"]
    payments.receive()
    (charge,) = payments.sdk.v1.charges.list({"customer": payments.customer(tenant)}).data
    assert (charge.amount, charge.amount_refunded) == (600, 150)
    assert collected.balance("cash") == cents_to_nanos(450)
    assert payments.alarms() == []


def test_a_credit_note_on_an_unpaid_invoice_lowers_what_is_charged(collected):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.credit(invoice.id, 150, to="amount_due")
    payments.save_card(tenant, "visa")
    payments.receive()
    payments.dunning.run_once()
    payments.work()
    assert payments.charged(tenant) == [450]
    assert stage.invoice(invoice.id).status == "paid"
    assert collected.balance("receivable", tenant) == 0


@pytest.mark.scenario(80)
def test_a_paid_top_up_is_a_paid_lot_of_credit(collected):
    stage, payments = collected.stage, collected.payments
    tenant = payments.tenant(tenant_id=stage.tenant())
    payments.enqueue(tenant, ChargeTopUp(charge_id=new_id("top"), amount_cents=2_500))
    assert payments.work() == ["done"]
    payments.receive()
    assert collected.balance("credits_paid", tenant) == -cents_to_nanos(2_500)
    assert collected.balance("cash") == cents_to_nanos(2_500)


@pytest.mark.parametrize("how", ["transfer", "note", "void", "write_off"])
def test_an_invoice_that_is_settled_while_stripe_is_down_suspends_no_tenant_and_restores_at_once(collected, how):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    payments.pass_days(14)
    payments.dunning.run_once()
    assert payments.standing(tenant) == "suspended"
    with unit_of_work(stage.engine) as session:  # no operation runs from here on
        match how:
            case "transfer":
                record_manual_payment(session, invoice_id=invoice.id, amount_cents=600, reference="17")
            case "note":
                credit_notes.issue_credit_note(
                    session, invoice_id=invoice.id, to="amount_due", reason="Outage", amount_cents=600
                )
            case "void":
                endings.void_invoice(session, invoice_id=invoice.id, reason="wrong plan")
            case "write_off":
                endings.write_off(session, invoice_id=invoice.id, reason="gone")
    assert (payments.is_dunned(invoice.id), payments.standing(tenant)) == (False, "good")


def test_an_invoice_that_is_paid_in_part_by_hand_stays_in_dunning(collected):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice(card=None)
    payments.work()
    with unit_of_work(stage.engine) as session:
        record_manual_payment(session, invoice_id=invoice.id, amount_cents=500, reference="transfer 17")
    payments.pass_days(14)
    payments.dunning.run_once()
    assert payments.standing(tenant) == "suspended"


def test_what_a_dispute_took_is_not_refunded_again_unless_it_is_won(collected):
    stage, payments = collected.stage, collected.payments
    tenant, invoice = collected.invoice()
    payments.work()
    (charge,) = payments.sdk.v1.charges.list({"customer": payments.customer(tenant)}).data
    dispute = payments.simulator.control("POST", "disputes", {"charge": charge.id})
    payments.receive()

    def refund() -> int:
        with unit_of_work(stage.engine) as session:
            return credit_notes.issue_credit_note(
                session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=150
            ).refund_cents

    with pytest.raises(Conflict, match="0 cents of this invoice were paid in money and not refunded or disputed"):
        refund()
    payments.simulator.control("POST", f"disputes/{dispute['id']}", {"status": "won"})
    payments.receive()
    assert refund() == 150
