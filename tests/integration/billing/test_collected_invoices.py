"""Payments with the real rooms of invoices and credits: a closed period is collected, credited and refunded, and the
ledger says the same as Stripe.
"""

import pytest

from billing.invoicing import credit_notes, endings
from billing.payments.booking import record_manual_payment
from core.db import unit_of_work
from core.errors import Conflict

pytestmark = pytest.mark.timeout(120)


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
