"""Refunds that somebody makes in Stripe's dashboard, beside refunds, disputes and credit notes of ours, on the real
ledger: it sums to zero, and cash is what Stripe has.
"""

import msgspec
import pytest

from billing.credits import balance, lots
from billing.invoicing import credit_notes, endings
from billing.payments.operations import ChargeTopUp
from billing.reconciliation.stripe import check_stripe
from core.db import unit_of_work
from core.errors import Unprocessable
from core.ids import new_id
from core.money import NANOS_PER_CENT, cents_to_nanos
from tests.integration.billing.payments.test_events import event, store, top_up_page

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def lot(cash):
    """A top-up of $25.00 whose credit is unspent."""
    return top_up(cash, "visa")


def top_up(cash, card: str):
    tenant = cash.payments.tenant(card, tenant_id=cash.stage.tenant())
    cash.payments.enqueue(tenant, ChargeTopUp(charge_id=new_id("top"), amount_cents=2_500))
    run(cash)
    with unit_of_work(cash.stage.engine) as session:
        return lots.page_of_lots(session, tenant, after=None, limit=1)[0]


def run(cash) -> None:
    cash.payments.work()
    cash.payments.receive()


def by_hand(cash, tenant: str, *cents: int) -> None:
    for each in cents:
        cash.payments.sdk.v1.refunds.create({"payment_intent": cash.charge_of(tenant).payment_intent, "amount": each})


def credit(cash, tenant: str) -> int:
    with unit_of_work(cash.stage.engine) as session:
        return balance.read_balance(session, tenant).paid_nanos // NANOS_PER_CENT


def spend(cash, tenant: str, cents: int) -> None:
    tokens = cents_to_nanos(cents) // 600
    cash.stage.bill(cash.stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=tokens, kv_page_ms=0))


def settled(cash, tenant: str, *, credit_cents: int, bad_debt_cents: int = 0, balance_cents: int = 0) -> None:
    """After everything has run, and again after every event came a second time."""
    for _ in range(2):
        run(cash)
        again(cash)
        assert cash.payments.stopped(tenant) is None
        assert cash.cents() == cash.at_stripe(tenant)
        assert credit(cash, tenant) == credit_cents
        assert cash.collected.balance("bad_debt") == cents_to_nanos(bad_debt_cents)
        assert cash.collected.balance("customer_balance", tenant) == -cents_to_nanos(balance_cents)
    assert cash.stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM entries") == 0
    with unit_of_work(cash.stage.engine) as session:
        assert check_stripe(session) == []


def again(cash) -> None:
    """Every event of Stripe's comes a second time."""
    rows = cash.payments.rows("SELECT DISTINCT type, object_kind, object_id, customer FROM stripe_events")
    store(cash.payments, *(event(cash.payments, *row.values()) for row in rows))


@pytest.mark.parametrize(
    ("spent", "refunds", "left", "bad_debt"),
    [
        (0, [400, 600], 1_500, 0),
        (1_800, [1_000], 0, 300),
    ],
)
def test_a_refund_by_hand_lowers_unspent_credit_and_what_is_spent_is_bad_debt(
    cash, lot, spent, refunds, left, bad_debt
):
    if spent:
        spend(cash, lot.tenant_id, spent)
    by_hand(cash, lot.tenant_id, *refunds)
    settled(cash, lot.tenant_id, credit_cents=left, bad_debt_cents=bad_debt)
    assert cash.payments.alarms() == ["refund_by_hand"] * len(refunds)


@pytest.mark.parametrize(
    ("known", "ours", "hand", "left"),
    [
        (True, 2_500, 1_000, 0),  # ours returns the 1,500 that Stripe still has
        (False, 1_000, 1_000, 1_500),  # somebody made by hand what was queued
    ],
    ids=["event first", "queue first"],
)
def test_a_queued_refund_returns_at_most_what_is_left_after_one_by_hand(cash, lot, known, ours, hand, left):
    cash.refund_credit(lot, ours)
    by_hand(cash, lot.tenant_id, hand)
    if known:
        cash.payments.receive()
    settled(cash, lot.tenant_id, credit_cents=left)
    assert cash.at_stripe(lot.tenant_id) == left


def test_a_refund_by_hand_at_the_moment_of_ours_is_planned_again(cash, lot, monkeypatch):
    cash.refund_credit(lot, 2_500)
    refund = cash.payments.account.refund

    def too_late(*arguments, **values):
        monkeypatch.setattr(cash.payments.account, "refund", refund)
        by_hand(cash, lot.tenant_id, 1_000)
        return refund(*arguments, **values)

    monkeypatch.setattr(cash.payments.account, "refund", too_late)
    assert cash.payments.work() == ["done"]
    settled(cash, lot.tenant_id, credit_cents=0)


def test_a_refusal_that_nothing_explains_stops_the_queue(cash, lot, monkeypatch):
    cash.refund_credit(lot, 1_000)
    refund = cash.payments.account.refund

    def too_much(intent, **values):
        return refund(intent, **values | {"amount_cents": 9_999})

    monkeypatch.setattr(cash.payments.account, "refund", too_much)
    assert cash.payments.work() == ["stopped"]
    assert "greater than unrefunded amount" in cash.payments.stopped(lot.tenant_id)


def test_an_admin_refunds_at_most_what_stripe_still_has(cash, lot):
    """Credit that a voided invoice returned is there, and its money went back by hand before."""
    tenant = lot.tenant_id
    spend(cash, tenant, 3_000)
    by_hand(cash, tenant, 1_000)
    run(cash)
    (invoice,) = cash.stage.close()
    with unit_of_work(cash.stage.engine) as session:
        endings.void_invoice(session, invoice_id=invoice.id, reason="a test", write_off=True)
    with pytest.raises(Unprocessable, match=r"Stripe can return \$15\.00 of this payment"):
        cash.refund_credit(lot, 2_500)
    cash.refund_credit(lot, 1_500)
    settled(cash, tenant, credit_cents=1_000, bad_debt_cents=1_000)


def test_a_refund_by_hand_that_fails_later_comes_back(cash, lot, monkeypatch):
    tenant = lot.tenant_id
    spend(cash, tenant, 2_000)
    by_hand(cash, tenant, 1_000)
    run(cash)
    went_back = cash.payments.account.went_back

    def failed(intent):
        found = went_back(intent)
        return found._replace(refunds=tuple(msgspec.structs.replace(each, status="failed") for each in found.refunds))

    monkeypatch.setattr(cash.payments.account, "went_back", failed)
    again(cash)
    run(cash)
    assert (cash.cents(), credit(cash, tenant)) == (2_500, 0)
    assert cash.collected.balance("bad_debt") == 0
    assert cash.collected.balance("customer_balance", tenant) == -cents_to_nanos(500)  # its part that was credit
    assert cash.payments.alarms() == ["refund_by_hand", "refund_failed"]


def test_a_refund_by_hand_that_never_left_changes_nothing(cash):
    tenant = top_up(cash, "refundFail").tenant_id
    by_hand(cash, tenant, 1_000)
    settled(cash, tenant, credit_cents=2_500)


def test_a_refund_of_ours_that_fails_while_its_operation_runs_is_on_the_balance(cash, monkeypatch):
    lot = top_up(cash, "refundFail")
    cash.refund_credit(lot, 1_000)
    read = cash.payments.account.refund_of_id

    def read_before_it_failed(refund_id: str):
        monkeypatch.setattr(cash.payments.account, "refund_of_id", read)
        cash.payments.receive()
        return msgspec.structs.replace(read(refund_id), status="pending")

    monkeypatch.setattr(cash.payments.account, "refund_of_id", read_before_it_failed)
    settled(cash, lot.tenant_id, credit_cents=1_500, balance_cents=1_000)
    assert cash.payments.alarms() == ["refund_failed"]


def test_a_refund_by_hand_and_a_dispute_take_the_same_money_once(cash, lot):
    tenant = lot.tenant_id
    spend(cash, tenant, 2_000)
    by_hand(cash, tenant, 1_000)
    dispute = cash.payments.simulator.control("POST", "disputes", {"charge": cash.charge_of(tenant).id})
    run(cash)
    assert (cash.cents(), credit(cash, tenant)) == (0, 0)
    assert cash.collected.balance("bad_debt") == cents_to_nanos(2_000)
    cash.payments.simulator.control("POST", f"disputes/{dispute['id']}", {"status": "won"})
    run(cash)
    assert cash.cents() == cash.at_stripe(tenant) == 1_500


def test_a_queued_refund_of_a_disputed_payment_ends_without_a_refund(cash, lot):
    cash.refund_credit(lot, 1_000)
    cash.payments.simulator.control("POST", "disputes", {"charge": cash.charge_of(lot.tenant_id).id})
    run(cash)
    assert (cash.payments.stopped(lot.tenant_id), cash.cents(), credit(cash, lot.tenant_id)) == (None, 0, 0)
    assert cash.collected.balance("bad_debt") == 0


def test_a_refund_that_is_reported_before_its_payment_lowers_the_credit(cash):
    tenant = cash.payments.tenant(tenant_id=cash.stage.tenant())
    _, page = top_up_page(cash.payments, tenant)
    cash.payments.simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
    by_hand(cash, tenant, 1_000)
    (refund,) = cash.payments.sdk.v1.refunds.list({"payment_intent": cash.charge_of(tenant).payment_intent}).data
    store(cash.payments, event(cash.payments, "refund.created", "refund", refund.id, None))
    cash.payments.events.run_once()
    assert credit(cash, tenant) == 1_500
    settled(cash, tenant, credit_cents=1_500)


def test_a_credit_note_and_a_refund_by_hand_return_the_same_money_once(cash):
    tenant, invoice = cash.collected.invoice()
    run(cash)
    with unit_of_work(cash.stage.engine) as session:
        credit_notes.issue_credit_note(session, invoice_id=invoice.id, to="refund", reason="x", amount_cents=300)
    by_hand(cash, tenant, 400)
    cash.payments.receive()
    settled(cash, tenant, credit_cents=0, bad_debt_cents=100)
    assert cash.at_stripe(tenant) == 600 - 400
    assert "refund_to_transfer" not in cash.payments.alarms()
