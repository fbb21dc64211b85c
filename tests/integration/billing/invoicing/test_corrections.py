"""Payments, credit notes, voids and write-offs of final invoices: what is due, who owes what, and what is refused."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from billing import ledger
from billing.invoices import balance, queries
from billing.invoices.payments import record_payment
from billing.invoicing import closing
from billing.invoicing.credit_notes import issue_credit_note
from billing.invoicing.endings import void_invoice, write_off
from billing.ledger import AccountRef
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import AppError, Conflict, InvalidRequest
from tests.conftest import wait_until
from tests.fixtures.together import together

CENT = Prices(input_nanos=10_000_000, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)


class Desk:
    """One tenant whose invoices have the total that a test wants, and an admin's acts on them."""

    def __init__(self, stage) -> None:
        self.stage = stage
        self.tenant = stage.tenant(CENT)
        self._references = 0

    def invoice(self, *cents: int):
        """An invoice with one line for each amount, one cent a token."""
        at = {"cached_tokens": 0, "output_tokens": 0, "kv_page_ms": 0}
        self.stage.bill(
            *(
                self.stage.event(self.tenant, adapter_id=f"ad_{number}", input_tokens=tokens, **at)
                for number, tokens in enumerate(cents)
            )
        )
        return closing.close_tenant(self.stage.engine, self.tenant, self.stage.now())

    def pay(self, invoice, cents: int, **changes):
        self._references += 1
        wanted = {"source": "stripe", "reference": f"pi_{self._references}"} | changes
        with unit_of_work(self.stage.engine) as session:
            return record_payment(session, invoice_id=invoice.id, amount_cents=cents, **wanted)

    def note(self, invoice, cents: int | None = None, *, to="amount_due", **changes):
        with unit_of_work(self.stage.engine) as session:
            return issue_credit_note(
                session, invoice_id=invoice.id, amount_cents=cents, to=to, reason="agreed", **changes
            )

    def void(self, invoice):
        with unit_of_work(self.stage.engine) as session:
            return void_invoice(session, invoice_id=invoice.id, reason="wrong tenant", write_off=True)

    def write_off(self, invoice):
        with unit_of_work(self.stage.engine) as session:
            return write_off(session, invoice_id=invoice.id, reason="insolvent")

    def document(self, invoice):
        with unit_of_work(self.stage.engine) as session:
            return queries.read_document(session, invoice.id)

    def cents(self, kind: str) -> int:
        """What the ledger has on an account, in cents; credits are negative."""
        platform = {"revenue", "cash", "bad_debt", "tax_payable", "rounding"}
        with unit_of_work(self.stage.engine) as session:
            nanos = ledger.balance_nanos(session, AccountRef(kind, None if kind in platform else self.tenant))
        assert nanos % 10_000_000 == 0
        return nanos // 10_000_000

    def balance(self) -> int:
        with unit_of_work(self.stage.engine) as session:
            return balance.balance_cents(session, self.tenant)

    def books(self) -> list:
        """Every table that an act may touch."""
        tables = ("entries", "transfers", "invoice_events", "credit_notes", "credit_note_tax_lines", "documents")
        return [self.stage.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


@pytest.fixture
def desk(stage) -> Desk:
    return Desk(stage)


def refused(code: str, kind: type[AppError] = Conflict):
    return pytest.raises(kind, check=lambda error: error.code == code)


@pytest.mark.scenario(115)
def test_a_note_on_a_paid_invoice_refunds_and_leaves_it_paid(desk):
    invoice = desk.invoice(10_000)
    assert (invoice.status, invoice.amount_due_cents) == ("open", 10_000)
    assert desk.pay(invoice, 10_000).status == "paid"
    note = desk.note(invoice, 3_000, to="refund")
    assert (note.number, note.refund_cents, note.due_cents, note.balance_cents) == ("TNR-C-000001", 3_000, 0, 0)
    after = desk.document(invoice)
    assert (after.status, after.credited_cents, after.paid_cents) == ("paid", 3_000, 10_000)
    assert [each.id for each in after.credit_notes] == [note.id]
    assert (desk.cents("receivable"), desk.cents("cash"), desk.cents("revenue")) == (0, 7_000, -7_000)


@pytest.mark.scenario(116)
def test_a_note_on_an_open_invoice_lowers_what_is_due_and_an_old_payment_leaves_a_surplus(desk):
    invoice = desk.invoice(10_000)
    desk.note(invoice, 3_000)
    assert desk.document(invoice).amount_due_cents == 7_000
    paid = desk.pay(invoice, 10_000)
    assert (paid.status, paid.paid_cents, paid.amount_due_cents) == ("paid", 7_000, 0)
    assert desk.balance() == 3_000
    assert [payment.surplus_cents for payment in desk.document(invoice).payments] == [3_000]
    assert (desk.cents("receivable"), desk.cents("cash")) == (0, 10_000)


@pytest.mark.scenario(117)
def test_notes_cannot_exceed_the_invoice(desk):
    invoice = desk.invoice(10_000)
    desk.note(invoice, 7_000)
    before = desk.books()
    with refused("credit_exceeds_invoice"):
        desk.note(invoice, 3_100)
    assert desk.books() == before
    assert desk.note(invoice, 3_000).due_cents == 3_000
    assert desk.document(invoice).status == "paid"


@pytest.mark.scenario(118)
def test_partial_notes_leave_exactly_nothing_of_net_and_tax(desk):
    desk.stage.tax()
    invoice = desk.invoice(5_000)
    assert (invoice.net_cents, invoice.tax_cents, invoice.total_cents) == (5_000, 950, 5_950)
    notes = [desk.note(invoice, 1_000) for _ in range(5)]
    assert [(note.net_cents, note.tax_cents) for note in notes] == [(1_000, 190)] * 5
    assert [tax.rate_ppm for tax in notes[0].tax_lines] == [190_000]
    after = desk.document(invoice)
    assert (after.amount_due_cents, after.credited_cents) == (0, 5_950)
    assert (desk.cents("revenue"), desk.cents("tax_payable"), desk.cents("receivable")) == (0, 0, 0)
    with refused("credit_exceeds_invoice"):
        desk.note(invoice, 1)


def test_a_line_is_credited_once_and_not_beyond_its_amount(desk):
    invoice = desk.invoice(600, 400)
    first, second = desk.document(invoice).lines
    part = desk.note(invoice, 100, line_id=first.id)
    assert (part.line_id, part.net_cents) == (first.id, 100)
    assert desk.note(invoice, line_id=first.id).net_cents == 500
    for amount in (None, 1):
        with refused("credit_exceeds_invoice"):
            desk.note(invoice, amount, line_id=first.id)
    with refused("line_not_found", AppError):
        desk.note(invoice, line_id=desk.document(desk.invoice(5)).lines[0].id)
    desk.note(invoice, 300)
    with refused("credit_exceeds_invoice"):
        desk.note(invoice, line_id=second.id)  # 400 of the line, but only 100 of the invoice are left


@pytest.mark.scenario(120)
def test_a_paid_invoice_is_not_voided_and_a_void_one_is_not_credited(desk):
    paid, void = desk.invoice(100), desk.invoice(200)
    for cents, code in ((1, "invoice_partly_paid"), (99, "invoice_not_open")):
        desk.pay(paid, cents)
        with refused(code):
            desk.void(paid)
    assert desk.void(void).status == "void"
    for act in (desk.void, desk.write_off):
        with refused("invoice_not_open"):
            act(void)
    with refused("invoice_void"):
        desk.note(void, 1)
    assert (desk.cents("receivable"), desk.cents("revenue")) == (0, -100)


@pytest.mark.scenario(120)
def test_money_for_a_void_invoice_is_kept_as_balance_and_flagged(desk):
    invoice = desk.invoice(100)
    desk.void(invoice)
    after = desk.pay(invoice, 100)
    assert (after.status, after.paid_cents) == ("void", 0)
    assert [payment.surplus_cents for payment in desk.document(invoice).payments] == [100]
    assert desk.balance() == 100


@pytest.mark.scenario(121)
def test_a_written_off_invoice_that_is_paid_after_all_is_recovered(desk):
    invoice = desk.invoice(4_000)
    assert desk.write_off(invoice).status == "uncollectible"
    assert (desk.cents("receivable"), desk.cents("bad_debt")) == (0, 4_000)
    assert desk.pay(invoice, 1_500).status == "uncollectible"
    assert desk.cents("bad_debt") == 2_500
    assert desk.pay(invoice, 2_500).status == "paid"
    assert (desk.cents("receivable"), desk.cents("bad_debt"), desk.cents("cash")) == (0, 0, 4_000)
    kinds = [event.kind for event in desk.document(invoice).events]
    assert kinds == ["finalized", "open", "uncollectible", "recovered", "payment", "recovered", "payment"]


def test_a_note_on_a_written_off_invoice_is_no_bad_debt(desk):
    invoice = desk.invoice(4_000)
    desk.write_off(invoice)
    desk.note(invoice, 1_000)
    assert (desk.cents("bad_debt"), desk.cents("revenue"), desk.cents("receivable")) == (3_000, -3_000, 0)


@pytest.mark.scenario(122)
def test_a_note_to_the_balance_pays_the_next_invoice(desk):
    first = desk.invoice(5_000)
    desk.pay(first, 5_000)
    desk.note(first, 3_000, to="balance")
    assert desk.balance() == 3_000
    second = desk.invoice(2_000)
    assert (second.status, second.total_cents, second.paid_cents) == ("paid", 2_000, 2_000)
    assert [payment.source for payment in desk.document(second).payments] == ["balance"]
    assert desk.balance() == 1_000
    assert desk.cents("receivable") == 0


@pytest.mark.scenario(123)
def test_of_two_admins_at_once_one_gets_the_last_thirty_dollars(desk):
    invoice = desk.invoice(10_000)
    desk.note(invoice, 7_000)
    notes = together(*[partial(desk.note, invoice, 3_000)] * 2)
    outcomes = [each.code if isinstance(each, Conflict) else each.number for each in notes]
    assert sorted(outcomes) == ["TNR-C-000002", "credit_exceeds_invoice"]
    assert desk.cents("revenue") == 0


@pytest.mark.scenario(142)
def test_a_payment_is_recorded_once_and_a_second_one_is_a_surplus(desk):
    invoice = desk.invoice(10_000)
    once = desk.pay(invoice, 10_000, reference="pi_same")
    assert desk.pay(invoice, 10_000, reference="pi_same") == once
    assert desk.balance() == 0
    desk.pay(invoice, 10_000, reference="pi_other")
    assert desk.balance() == 10_000
    with refused("payment_reference_used"):
        desk.pay(invoice, 9_999, reference="pi_same")
    with refused("invalid_value", InvalidRequest):
        desk.pay(invoice, 0)


def test_one_wire_that_two_tenants_are_said_to_have_paid_at_once_is_refused_for_the_second(stage, desk):
    invoice, other = desk.invoice(10_000), Desk(stage).invoice(10_000)
    wire = {"amount_cents": 10_000, "source": "manual", "reference": "wire 1"}
    with ThreadPoolExecutor(1) as second:
        with unit_of_work(stage.engine) as session:
            record_payment(session, invoice_id=invoice.id, **wire)
            beside = second.submit(desk.pay, other, 10_000, source="manual", reference="wire 1")
            wait_until(
                lambda: stage.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, what="the second to wait"
            )
        with refused("payment_reference_used"):
            beside.result()
    with unit_of_work(stage.engine) as session:
        assert queries.read_invoice(session, other.id).amount_due_cents == 10_000


def test_a_refund_is_at_most_what_was_paid_in_money(desk):
    invoice = desk.invoice(1_000)
    desk.pay(invoice, 1_000)
    desk.note(invoice, 600, to="balance")
    other = desk.invoice(900)  # 600 from the balance, 300 in money
    desk.pay(other, 300)
    before = desk.books()
    with refused("refund_exceeds_paid"):
        desk.note(other, 301, to="refund")
    assert desk.books() == before
    assert desk.note(other, 300, to="refund").refund_cents == 300


EVENT = (
    "INSERT INTO invoice_events (invoice_id, seq, kind, amount_cents, surplus_cents, source, status, amount_due_cents,"
    " paid_cents, credited_cents, created_at) VALUES (:id, :seq, :kind, :amount, 0, :source, :status, :due, :paid, 0,"
    " now())"
)


def test_the_database_refuses_an_event_that_does_not_follow(desk):
    invoice = desk.invoice(100)
    for values in (
        {"seq": 3, "kind": "payment", "amount": 101, "source": "manual", "status": "open", "due": -1, "paid": 101},
        {"seq": 3, "kind": "payment", "amount": 50, "source": "manual", "status": "paid", "due": 0, "paid": 50},
        {"seq": 3, "kind": "recovered", "amount": 0, "source": None, "status": "open", "due": 100, "paid": 0},
        {"seq": 4, "kind": "void", "amount": 0, "source": None, "status": "void", "due": 0, "paid": 0},
        {"seq": 1, "kind": "finalized", "amount": 0, "source": None, "status": "finalized", "due": 100, "paid": 0},
    ):
        with pytest.raises(Exception, match=r"refused|does not follow|not its next"):
            desk.stage.change(EVENT, id=invoice.id, **values)
