"""A void gives back what the invoice had used of the tenant's credit and balance, once, and changes no document. Its
lines are on the next invoice, or on none.
"""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy.exc import IntegrityError

from billing.credits.lots import void_promotional
from billing.invoices import balance, verification
from billing.invoices.queries import read_document
from billing.invoicing import drafts
from billing.invoicing.credit_notes import issue_credit_note
from billing.invoicing.endings import void_invoice
from billing.tax import profiles
from billing.tax.parties import Buyer
from core.db import unit_of_work
from core.errors import Conflict
from tests.fixtures.money_checks import MoneyChecks
from tests.fixtures.together import together
from tests.fixtures.wallet import DOLLAR

CENT = DOLLAR // 100


@pytest.fixture
def checks(stage) -> MoneyChecks:
    """Call it after each act: it also remembers the hashes of documents."""
    return MoneyChecks(stage.engine)


def void(stage, invoice_id: str, *, write_off: bool = True):
    with unit_of_work(stage.engine) as session:
        return void_invoice(session, invoice_id=invoice_id, reason="wrong plan", write_off=write_off)


def test_a_void_invoice_is_on_the_next_one_once_with_the_address_of_then(stage, wallet, checks):
    stage.tax()
    tenant = stage.tenant()
    gift = wallet.granted(tenant, 10, kind="promotional")
    wallet.granted(tenant, 1)
    wallet.spend(tenant, 30)
    (wrong,) = stage.close()
    assert (wrong.net_cents, wrong.total_cents, wrong.amount_due_cents) == (2_000, 2_380, 2_280)
    pending = wallet.balance(tenant).pending_nanos
    void(stage, wrong.id, write_off=False)
    checks.check()
    assert wallet.account("revenue") == -30 * DOLLAR, "what was used is still earned"
    assert wallet.account("usage_unbilled", tenant) == 30 * DOLLAR
    assert (pending, wallet.balance(tenant).pending_nanos) == (0, 11 * DOLLAR), "the credit is not free for more usage"
    with unit_of_work(stage.engine) as session:
        profiles.set_buyer(session, tenant, Buyer(legal_name="Acme", address=("Weg 1",), country="DE"))
    draft = drafts.read_drafts(stage.engine, tenant, grace=timedelta(0))[0]
    (right,) = stage.close()
    checks.check()
    wallet.check()
    shown, before = read(stage, right.id), read(stage, wrong.id)
    assert draft.total_cents == right.total_cents == wrong.total_cents
    assert (right.amount_nanos, right.amount_due_cents, shown.buyer.legal_name) == (30 * DOLLAR, 2_280, "Acme")
    assert [(line.kind, line.quantity, line.covers_from, line.covers_until) for line in shown.lines] == [
        (line.kind, line.quantity, wrong.period_start, wrong.period_end) for line in before.lines
    ]
    assert [(event.kind, event.write_off) for event in before.events][-1] == ("void", False)
    assert wallet.lot(tenant, gift).invoiced_nanos == 10 * DOLLAR
    assert stage.reconcile().unbilled_tokens == 0
    wallet.spend(tenant, 3)
    (following,) = stage.close()
    assert following.amount_nanos == 3 * DOLLAR
    checks.check()


def test_what_was_voided_twice_credited_and_late_is_billed_once(stage, wallet, checks):
    tenant = stage.tenant()
    wallet.spend(tenant, 30)
    (first,) = stage.close()
    with unit_of_work(stage.engine) as session:
        issue_credit_note(session, invoice_id=first.id, amount_cents=500, to="amount_due", reason="agreed")
    wallet.spend(tenant, 6)
    (second,) = stage.close()
    void(stage, second.id, write_off=False)
    void(stage, first.id, write_off=False)
    checks.check()
    (third,) = stage.close()
    assert third.amount_nanos == 31 * DOLLAR
    void(stage, third.id, write_off=False)
    checks.check()
    (fourth,) = stage.close()
    assert (fourth.amount_nanos, fourth.net_cents) == (31 * DOLLAR, 3_100)
    checks.check()
    assert stage.close() == []


@pytest.mark.parametrize("write_off", [True, False])
def test_usage_of_before_an_expiry_uses_the_credit_on_the_next_invoice_too(stage, wallet, checks, write_off):
    tenant = stage.tenant()
    ends = stage.now() + timedelta(seconds=2)
    lot = wallet.granted(tenant, 10, kind="promotional", expires_at=ends)
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    stage.value("SELECT pg_sleep_until(:ends)::text", ends=ends)
    void(stage, invoice.id, write_off=write_off)
    checks.check()
    wallet.spend(tenant, 3)
    (following,) = stage.close()
    assert following.net_cents == (300 if write_off else 2_300)
    assert wallet.lot(tenant, lot).invoiced_nanos == (0 if write_off else 10 * DOLLAR)
    checks.check()


def test_paid_credit_and_balance_that_paid_a_part_come_back_with_the_tax(stage, wallet, checks):
    stage.tax()
    tenant = stage.tenant()
    gift = wallet.granted(tenant, 3, kind="promotional")
    paid = wallet.granted(tenant, 5)
    wallet.spend(tenant, 6)
    (first,) = stage.close()
    assert (first.net_cents, first.total_cents, first.paid_cents) == (300, 357, 357)
    with unit_of_work(stage.engine) as session:
        issue_credit_note(session, invoice_id=first.id, amount_cents=100, to="balance", reason="agreed")
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    assert (invoice.total_cents, invoice.amount_due_cents) == (3_570, 3_570 - 143 - 119)
    document = read(stage, invoice.id)
    with unit_of_work(stage.engine) as session:
        issue_credit_note(session, invoice_id=invoice.id, amount_cents=1_000, to="amount_due", reason="agreed")
    checks.check()
    voided = void(stage, invoice.id)
    checks.check()
    assert (voided.status, voided.paid_cents, voided.amount_due_cents, voided.credited_cents) == ("void", 0, 0, 1_190)
    assert wallet.lot(tenant, paid).balance_nanos == 143 * CENT
    assert wallet.lot(tenant, gift).balance_nanos == 0
    with unit_of_work(stage.engine) as session:
        assert balance.balance_cents(session, tenant) == 119
        assert verification.verify(session).findings == []
    assert wallet.account("receivable", tenant) == 0
    assert wallet.account("tax_payable") == -(57 - 19) * CENT
    assert wallet.account("revenue") == -(600 - 100) * CENT
    after = read(stage, invoice.id)
    assert (after.sha256, after.lines, after.credits, after.tax_lines) == (
        document.sha256, document.lines, document.credits, document.tax_lines,
    )  # fmt: skip


def read(stage, invoice_id: str):
    with unit_of_work(stage.engine) as session:
        return read_document(session, invoice_id)


@pytest.mark.parametrize(("kind", "account"), [("promotional", "promotions"), ("paid", "breakage")])
def test_what_comes_back_to_an_expired_lot_lapses_at_once(stage, wallet, checks, kind, account):
    tenant = stage.tenant()
    ends = stage.now() + timedelta(seconds=3)
    lot = wallet.granted(tenant, 10, kind=kind, expires_at=ends)
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    assert wallet.lot(tenant, lot).invoiced_nanos == 10 * DOLLAR
    stage.value("SELECT pg_sleep_until(:ends)::text", ends=ends)
    void(stage, invoice.id)
    checks.check()
    shown = wallet.lot(tenant, lot)
    assert (shown.balance_nanos, shown.lapsed_nanos, shown.status) == (0, 10 * DOLLAR, "expired")
    assert wallet.account(f"credits_{kind}", tenant) == 0
    assert wallet.account(account) == (-10 * DOLLAR if kind == "paid" else 0)
    assert wallet.lapse(tenant) == 0
    wallet.spend(tenant, 6, at=ends - timedelta(milliseconds=1))
    assert wallet.balance(tenant).pending_nanos == 6 * DOLLAR, "usage of before the expiry takes its part back"
    wallet.check()


def test_voids_at_once_with_a_close_give_back_once_and_deadlock_never(stage, wallet, checks):
    tenant = stage.tenant()
    lot = wallet.granted(tenant, 10, kind="promotional")
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    wallet.spend(tenant, 6)
    *voided, closed = together(*[partial(void, stage, invoice.id)] * 3, stage.close)
    assert len(closed) == 1
    ends = sorted(each.code if isinstance(each, Conflict) else each.status for each in voided)
    assert ends == ["invoice_not_open", "invoice_not_open", "void"]
    entries = stage.rows("SELECT kind, amount_nanos FROM credit_entries WHERE kind = 'return'")
    assert [dict(each) for each in entries] == [{"kind": "return", "amount_nanos": 10 * DOLLAR}]
    assert wallet.lot(tenant, lot).balance_nanos + wallet.lot(tenant, lot).invoiced_nanos == 10 * DOLLAR
    checks.check()
    wallet.check()


def test_the_database_returns_at_most_what_the_invoice_used(stage, wallet):
    tenant = stage.tenant()
    lot = wallet.granted(tenant, 10, kind="promotional")
    wallet.spend(tenant, 3)
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    void(stage, invoice.id)
    copied = """
        INSERT INTO credit_entries SELECT lot_id, number + 1, kind, amount_nanos + :more, balance_nanos + amount_nanos
            + :more, invoice_id, :transfer, created_at FROM credit_entries WHERE lot_id = :lot AND kind = 'return'
    """
    for more in (0, 1):
        with pytest.raises(IntegrityError):
            stage.change(copied, more=more, lot=lot, transfer=f"tr_{more}")


def test_what_comes_back_to_a_tenant_that_left_is_taken_back(stage, wallet, checks):
    tenant = stage.tenant()
    lot = wallet.granted(tenant, 10, kind="promotional")
    wallet.spend(tenant, 30)
    (invoice,) = stage.close()
    void(stage, invoice.id)
    with unit_of_work(stage.engine) as session:
        assert void_promotional(session, tenant) == 1
    shown = wallet.lot(tenant, lot)
    assert (shown.balance_nanos, shown.voided_nanos) == (0, 10 * DOLLAR)
    checks.check()
