"""Every cent of the platform's cash is explained by Stripe's objects or by hand, whatever happens to payments."""

import pytest

from billing.credits import lots
from billing.invoices.payments import record_payment
from billing.invoicing import credit_notes
from billing.payments import queue
from core.db import unit_of_work
from core.money import cents_to_nanos

pytestmark = pytest.mark.timeout(180)


WRONG = (
    "UPDATE received_payments SET amount_cents = amount_cents + 1 WHERE amount_cents = 2500",
    "DELETE FROM returned_payments WHERE amount_cents = 150",
    (
        "UPDATE entries SET amount_nanos = amount_nanos + sign(amount_nanos)"
        " WHERE transfer_id = (SELECT transfer_id FROM credit_entries WHERE kind = 'grant')"
    ),
)


def test_invoices_credit_and_refunds_are_explained_at_every_moment_and_one_cent_more_or_less_is_an_alarm(cash):
    tenant, invoice = cash.collected.invoice()
    cash.handle()
    lot = cash.top_up(tenant)
    cash.refund_credit(lot, 700)
    cash.handle()
    with unit_of_work(cash.stage.engine) as session:
        credit_notes.issue_credit_note(session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=150)
    cash.handle()
    assert cash.cents() == cash.at_stripe(tenant) == 600 + 2_500 - 700 - 150
    for change in WRONG:
        cash.stage.force(change)
    assert sorted(cash.differs()) == [
        ("cash and its cause", "nanodollar", -1), ("received and booked", "cent", 1),
        ("refunds of invoices", "cent", -150),
    ]  # fmt: skip


def test_money_by_hand_explains_itself(cash):
    tenant, invoice = cash.collected.invoice(card=None)
    cash.handle()
    with unit_of_work(cash.stage.engine) as session:
        record_payment(session, invoice_id=invoice.id, amount_cents=200, source="manual", reference="transfer 1")
        wire = {"tenant_id": tenant, "kind": "paid", "amount_nanos": cents_to_nanos(900), "reference": "wire 1"}
        lot = lots.grant(session, **wire)
        lots.refund_unspent(session, tenant_id=tenant, lot_id=lot.id, amount_nanos=cents_to_nanos(300))
    cash.payments.save_card(tenant, "visa")
    cash.handle()
    cash.payments.dunning.run_once()
    cash.handle()
    with unit_of_work(cash.stage.engine) as session:
        credit_notes.issue_credit_note(session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=500)
    cash.handle()
    assert cash.at_stripe(tenant) == 0  # the 400 cents that were paid there went back there
    assert cash.cents() == 600 + 100
    assert "refund_to_transfer" in cash.payments.alarms()


def refunded(cash, *, bought: bool) -> str:
    """A tenant whose refund of $1.50 is queued: of bought credit, or by a credit note."""
    if bought:
        tenant = cash.payments.tenant(tenant_id=cash.stage.tenant())
        cash.refund_credit(cash.top_up(tenant), 150)
    else:
        tenant, invoice = cash.collected.invoice()
        cash.handle()
        with unit_of_work(cash.stage.engine) as session:
            credit_notes.issue_credit_note(
                session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=150
            )
    return tenant


def cancel_first(cash, tenant: str) -> None:
    """What an admin does with a queue that has stopped."""
    cash.payments.change("UPDATE payment_queues SET stopped_at = now(), stopped_reason = 'a test'")
    with unit_of_work(cash.stage.engine) as session:
        queue.resume(session, tenant, cancel=True)


@pytest.mark.scenario(82)
@pytest.mark.parametrize("bought", [True, False])
def test_a_dispute_takes_money_and_a_won_one_brings_it_back(cash, bought):
    if bought:
        tenant = cash.payments.tenant(tenant_id=cash.stage.tenant())
        lot = cash.top_up(tenant)
        cash.refund_credit(lot, 500)
    else:
        tenant, _ = cash.collected.invoice()
    cash.handle()
    had = cash.cents()
    dispute = cash.payments.simulator.control("POST", "disputes", {"charge": cash.charge_of(tenant).id})
    cash.handle()
    assert cash.cents() == 0
    cash.handle()
    assert cash.collected.balance("bad_debt") == cents_to_nanos(0 if bought else 600)
    cash.payments.simulator.control("POST", f"disputes/{dispute['id']}", {"status": "won"})
    for _ in range(2):
        cash.handle()
        assert cash.cents() == had
        assert cash.collected.balance("bad_debt") == 0


@pytest.mark.parametrize("bought", [True, False])
def test_a_cancelled_refund_that_is_made_by_hand_at_stripe_is_booked_once(cash, bought):
    tenant = refunded(cash, bought=bought)
    cancel_first(cash, tenant)
    cash.handle()
    for bad_debt in (0, 150):  # the second one replaces no cancelled refund
        cash.payments.sdk.v1.refunds.create({"payment_intent": cash.charge_of(tenant).payment_intent, "amount": 150})
        for _ in range(2):
            cash.handle()
            assert cash.cents() == cash.at_stripe(tenant)
            assert cash.collected.balance("bad_debt") == cents_to_nanos(0 if bought else bad_debt)
    assert cash.payments.alarms() == ["refund_by_hand"]


def test_a_refund_that_was_made_and_then_cancelled_is_recorded_by_its_event(cash):
    tenant = refunded(cash, bought=True)
    cash.payments.fail("timeout_after", "/v1/refunds", seconds=4)
    assert cash.payments.work(1) == ["postponed"]
    cancel_first(cash, tenant)
    cash.handle()
    assert cash.cents() == cash.at_stripe(tenant)
    assert cash.payments.value("SELECT sum(amount_cents) FROM returned_payments") == 150
    assert cash.payments.alarms() == []
