"""A worker that is killed before or after any commit or call to Stripe leaves nothing undone and doubles nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from billing.payments import outbox
from billing.payments.operations import ChargeTopUp, CollectInvoice
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
    """An invoice, of which a part is refunded once it is paid, and a top-up with the saved card."""
    tenant = stage.tenant()
    paid = stage.invoice(tenant, 1_000)
    stage.work()
    stage.credit(paid, 150)
    invoice = stage.invoice(tenant, 500, 300)
    stage.enqueue(tenant, ChargeTopUp(charge_id=new_id("top"), amount_cents=2_500))
    return tenant, invoice


def assert_done_once(stage, tenant: str, invoice: str) -> None:
    states = stage.rows("SELECT state FROM payment_operations WHERE tenant_id = :t", t=tenant)
    assert {row["state"] for row in states} == {"done"}, stage.stopped(tenant)
    charges = stage.sdk.v1.charges.list({"customer": stage.customer(tenant)}).data
    assert [(each.amount, each.amount_refunded, each.paid) for each in reversed(charges)] == [
        (1_000, 150, True),
        (800, 0, True),
        (2_500, 0, True),
    ]
    assert (stage.due(invoice), stage.bought(tenant)) == (0, [2_500])
    booked = stage.rows("SELECT amount_cents FROM received_payments WHERE tenant_id = :t", t=tenant)
    assert sorted(row["amount_cents"] for row in booked) == [800, 1_000, 2_500]
    assert stage.balance("receivable", tenant) == stage.balance("customer_balance", tenant) == 0


def kills(boundaries: int, *, every: bool) -> list[int]:
    """Every boundary, or the first, one in the middle and one near the end."""
    return list(range(1, boundaries + 1)) if every else [1, boundaries // 2, boundaries * 9 // 10]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_worker_that_is_killed_anywhere_does_everything_once(stage, workers, every):
    tenant, invoice = queue_everything(stage)
    boundaries = workers.work()
    assert_done_once(stage, tenant, invoice)
    assert boundaries > 40
    for kill_at in kills(boundaries, every=every):
        tenant, invoice = queue_everything(stage)
        assert workers.work(kill_at) == -1
        assert workers.work() > 0
        assert_done_once(stage, tenant, invoice)
    assert stage.alarms() == []


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_while_the_owner_may_pay_on_a_page_charges_once(stage, workers, every):
    def queue() -> tuple[str, str]:
        """An invoice with an open page, whose owner saves a card, and pays a part by transfer."""
        tenant = stage.tenant(card=None)
        invoice = stage.invoice(tenant, 1_000)
        stage.work()
        assert stage.open_page(invoice)["url"]
        stage.save_card(tenant, "visa")
        stage.enqueue(tenant, CollectInvoice(invoice_id=invoice, attempt=2))
        stage.pay_by_hand(invoice, 300)
        return tenant, invoice

    def assert_rest_charged_once() -> None:
        assert stage.stopped(tenant) is None
        assert (stage.charged(tenant), stage.due(invoice)) == ([700], 0)

    tenant, invoice = queue()
    boundaries = workers.work()
    assert_rest_charged_once()
    assert boundaries > 20
    for kill_at in kills(boundaries, every=every):
        tenant, invoice = queue()
        assert workers.work(kill_at) == -1
        assert workers.work() > 0
        assert_rest_charged_once()
    assert stage.alarms() == []


@pytest.mark.parametrize("boundaries", [[6], pytest.param(range(1, 11), marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_while_it_creates_a_customer_creates_one(stage, workers, boundaries):
    """After the sixth, Stripe has the customer, and its answer is not stored."""
    for kill_at in boundaries:
        tenant = new_id("tn")
        with unit_of_work(stage.engine) as session:
            outbox.open_queue(session, tenant, name="Ada")
        assert workers.work(kill_at) == -1
        assert workers.work() >= 0
        customers = stage.sdk.v1.customers.list({"limit": 100}).data
        assert [each.id for each in customers if getattr(each.metadata, "tenora_id", None) == tenant] == [
            stage.customer(tenant)
        ]
