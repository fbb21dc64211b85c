"""A worker that is killed before or after any commit or call to Stripe leaves nothing undone and doubles nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from billing.payments import outbox
from billing.payments.operations import ChargeTopUp, DeductPayment, PayInvoice, PushCreditNote
from core.db import unit_of_work
from core.ids import new_id
from tests.fixtures.stripe_simulator import TEST_KEY

pytestmark = [pytest.mark.timeout(540), pytest.mark.scenario(133)]
LEASE_OVER_S = 400


class Workers:
    """Starts workers that are killed at a boundary."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self._offset_s = 0

    def work(self, kill_at: int = 0) -> int:
        """The boundaries that a worker passed, or -1 if it was killed; its lease is over for the next."""
        self._process.stdin.write(json.dumps({"kill_at": kill_at, "offset_s": self._offset_s}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the workers' process died"
        self._offset_s += LEASE_OVER_S
        return int(answer)


@pytest.fixture
def workers(stage, postgres_settings) -> Iterator[Workers]:
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn,
        "TENORA_STRIPE_API_BASE": stage.simulator.url,
        "TENORA_STRIPE_API_KEY": TEST_KEY,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fixtures.killed_payments"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    yield Workers(process)
    process.communicate(timeout=20)


def queue_everything(stage) -> tuple[str, str]:
    """An invoice of three lines that is paid and partly refunded, and a top-up with the saved card."""
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 500, 300, 200)
    note = PushCreditNote(note_id=new_id("adj"), invoice_id=invoice, amount_cents=150, memo="Outage", to="refund")
    stage.enqueue(tenant, note)
    stage.enqueue(tenant, ChargeTopUp(top_up_id=new_id("top"), amount_cents=2_500))
    return tenant, invoice


def assert_done_once(stage, tenant: str, invoice: str) -> None:
    states = stage.rows("SELECT state FROM payment_operations WHERE tenant_id = :t", t=tenant)
    assert {row["state"] for row in states} == {"done"}, stage.stopped(tenant)
    customer = stage.customer(tenant)
    found = stage.of(invoice)
    assert (found.status, found.total) == ("paid", 1_000)
    assert sorted(line.amount_cents for line in stage.account.lines(found.id)) == [200, 300, 500]
    charges = stage.sdk.v1.charges.list({"customer": customer}).data
    assert sorted((each.amount, each.amount_refunded, each.paid) for each in charges) == [
        (1_000, 150, True),
        (2_500, 0, True),
    ]
    assert [note.total for note in stage.sdk.v1.credit_notes.list({"invoice": found.id}).data] == [150]
    payments = stage.rows("SELECT amount_cents FROM test_payments WHERE invoice_id = :i", i=invoice)
    assert payments == [{"amount_cents": 1_000}]
    assert stage.rows("SELECT cents FROM test_credit WHERE tenant_id = :t", t=tenant) == [{"cents": 2_500}]


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_worker_that_is_killed_anywhere_does_everything_once(stage, workers, stride):
    tenant, invoice = queue_everything(stage)
    boundaries = workers.work()
    assert_done_once(stage, tenant, invoice)
    assert boundaries > 60
    for kill_at in range(1, boundaries + 1, stride):
        tenant, invoice = queue_everything(stage)
        assert workers.work(kill_at) == -1
        assert workers.work() > 0
        assert_done_once(stage, tenant, invoice)
    assert stage.alarms() == []


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_while_it_deducts_a_payment_charges_the_rest_once(stage, workers, stride):
    def queue() -> tuple[str, str]:
        """An attempt to pay, behind it a payment by hand of $3.00, and a second one of $2.00."""
        tenant = stage.tenant(card=None)
        invoice = stage.invoice(tenant, 1_000)
        assert stage.work() == ["done"]
        stage.save_card(tenant, "visa")
        stage.enqueue(tenant, PayInvoice(invoice_id=invoice, attempt=2))
        for payment, cents in (("one", 300), ("two", 200)):
            stage.change(
                "UPDATE test_invoices SET due_cents = due_cents - :c WHERE invoice_id = :i", c=cents, i=invoice
            )
            paid = {"payment_id": f"{payment}:{invoice}", "amount_cents": cents, "memo": "Paid by transfer"}
            stage.enqueue(tenant, DeductPayment(invoice_id=invoice, **paid))
        return tenant, invoice

    def assert_rest_charged_once() -> None:
        states = stage.rows("SELECT state FROM payment_operations WHERE tenant_id = :t", t=tenant)
        assert {row["state"] for row in states} == {"done"}, stage.stopped(tenant)
        charges = stage.sdk.v1.charges.list({"customer": stage.customer(tenant)}).data
        assert [each.amount for each in charges] == [500]
        notes = stage.sdk.v1.credit_notes.list({"invoice": stage.of(invoice).id}).data
        assert sum(note.total for note in notes) == 500
        assert stage.due(invoice) == 0

    tenant, invoice = queue()
    boundaries = workers.work()
    assert_rest_charged_once()
    for kill_at in range(1, boundaries + 1, stride):
        tenant, invoice = queue()
        assert workers.work(kill_at) == -1
        assert workers.work() > 0
        assert_rest_charged_once()
    assert stage.alarms() == []


def test_a_worker_that_is_killed_while_it_creates_a_customer_creates_one(stage, workers):
    for kill_at in range(1, 9):
        tenant = new_id("tn")
        with unit_of_work(stage.engine) as session:
            outbox.open_queue(session, tenant, name="Ada")
        assert workers.work(kill_at) == -1
        assert workers.work() >= 0
        customers = stage.sdk.v1.customers.list({"limit": 100}).data
        assert [each.id for each in customers if getattr(each.metadata, "tenora_id", None) == tenant] == [
            stage.customer(tenant)
        ]


def test_many_kills_of_one_worker_after_the_other_end_with_everything_done_once(stage, workers):
    tenant, invoice = queue_everything(stage)
    kills = 0
    while workers.work(kill_at=15 + 4 * kills) == -1:  # each reads what is done again before it gets further
        kills += 1
        assert kills < 60
    assert kills >= 5
    assert_done_once(stage, tenant, invoice)
