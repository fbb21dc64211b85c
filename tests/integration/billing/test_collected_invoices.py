"""Payments with the real rooms of invoices and credits: a closed period is collected, credited and refunded, and the
ledger says the same as Stripe.
"""

from collections.abc import Iterator

import pytest

from billing.invoices import credit_notes, endings
from billing.invoices.payments import record_payment
from billing.ledger import AccountRef, balance_nanos
from billing.payments.operations import ChargeTopUp
from billing.payments.tenora_books import TenoraBooks
from core.db import unit_of_work
from core.ids import new_id
from core.money import cents_to_nanos
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.integration.billing.payments.conftest import PaymentStage

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def payments(engine, simulator) -> PaymentStage:
    return PaymentStage(engine, simulator, TenoraBooks())


def balance(stage, kind: str, tenant_id: str | None = None) -> int:
    with unit_of_work(stage.engine) as session:
        return balance_nanos(session, AccountRef(kind, tenant_id))


def invoiced(stage, payments, card: str | None = "visa"):
    """A tenant with an invoice of $6.00 for ten million output tokens."""
    tenant = payments.tenant(card, tenant_id=stage.tenant())
    stage.bill(stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=10_000_000, kv_page_ms=0))
    (invoice,) = stage.close()
    assert invoice.total_cents == 600
    return tenant, invoice


@pytest.mark.scenario(130)
def test_a_closed_period_is_paid_at_stripe_and_in_the_ledger(stage, payments):
    tenant, invoice = invoiced(stage, payments)
    assert payments.work() == ["done"]
    assert (payments.of(invoice.id).status, payments.of(invoice.id).total) == ("paid", 600)
    payments.receive()
    after = stage.invoice(invoice.id).invoice
    assert (after.status, after.amount_due_cents, after.paid_cents) == ("paid", 0, 600)
    assert balance(stage, "receivable", tenant) == 0
    assert balance(stage, "cash") == cents_to_nanos(600)


@pytest.mark.scenario(115)
def test_a_credit_note_to_refund_returns_the_money_once(stage, payments):
    tenant, invoice = invoiced(stage, payments)
    payments.work()
    with unit_of_work(stage.engine) as session:
        credit_notes.issue_credit_note(
            session, invoice_id=invoice.id, to="refund", reason="Outage", amount_cents=150, idempotency="one"
        )
    assert payments.work() == ["done"]
    payments.receive()
    (charge,) = payments.sdk.v1.charges.list({"customer": payments.customer(tenant)}).data
    assert (charge.amount, charge.amount_refunded) == (600, 150)
    assert balance(stage, "cash") == cents_to_nanos(450)
    assert payments.alarms() == []


def test_a_credit_note_on_an_unpaid_invoice_lowers_what_stripe_asks_for(stage, payments):
    tenant, invoice = invoiced(stage, payments, card=None)
    payments.work()
    with unit_of_work(stage.engine) as session:
        credit_notes.issue_credit_note(
            session, invoice_id=invoice.id, to="amount_due", reason="Outage", amount_cents=150, idempotency="one"
        )
    payments.work()
    assert payments.of(invoice.id).amount_remaining == 450
    payments.save_card(tenant, "visa")
    payments.receive()
    payments.dunning.run_once()
    payments.work()
    assert stage.invoice(invoice.id).invoice.status == "paid"
    assert balance(stage, "receivable", tenant) == 0


def test_a_voided_invoice_is_voided_at_stripe(stage, payments):
    _, invoice = invoiced(stage, payments, card=None)
    payments.work()
    with unit_of_work(stage.engine) as session:
        endings.void_invoice(session, invoice_id=invoice.id, reason="wrong plan")
    payments.work()
    assert payments.of(invoice.id).status == "void"
    assert payments.case(invoice.id)["state"] == "ended"


def test_an_invoice_that_is_paid_by_hand_is_not_charged_at_stripe_afterwards(stage, payments):
    tenant, invoice = invoiced(stage, payments, card=None)
    payments.work()
    with unit_of_work(stage.engine) as session:
        record_payment(session, invoice_id=invoice.id, amount_cents=600, source="manual", reference="transfer 17")
    payments.save_card(tenant, "visa")
    payments.receive()
    payments.dunning.run_once()
    payments.work()
    assert (payments.of(invoice.id).status, payments.case(invoice.id)["state"]) == ("paid", "ended")
    assert payments.sdk.v1.charges.list({"customer": payments.customer(tenant)}).data == []
    assert stage.invoice(invoice.id).invoice.paid_cents == 600
    assert balance(stage, "customer_balance", tenant) == 0


@pytest.mark.scenario(80)
def test_a_paid_top_up_is_a_paid_lot_of_credit(stage, payments):
    tenant = payments.tenant(tenant_id=stage.tenant())
    payments.enqueue(tenant, ChargeTopUp(top_up_id=new_id("top"), amount_cents=2_500))
    assert payments.work() == ["done"]
    payments.receive()
    assert balance(stage, "credits_paid", tenant) == -cents_to_nanos(2_500)
    assert balance(stage, "cash") == cents_to_nanos(2_500)
