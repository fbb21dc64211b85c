"""The state of an invoice is the fold of its events."""

from hypothesis import given
from hypothesis import strategies as st

from billing.invoices.statuses import EventChange, InvoiceState, after, fold

OPENED = (EventChange(kind="finalized", amount_cents=100), EventChange(kind="open"))


def test_an_invoice_is_open_until_nothing_is_due():
    state = fold(OPENED)
    assert (state.status, state.amount_due_cents, state.seq) == ("open", 100, 2)
    state = after(state, EventChange(kind="payment", amount_cents=60))
    assert (state.status, state.amount_due_cents, state.paid_cents) == ("open", 40, 60)
    assert after(state, EventChange(kind="payment", amount_cents=40)).status == "paid"
    assert after(state, EventChange(kind="credit_note", amount_cents=40, credited_cents=40)).status == "paid"


def test_an_invoice_of_which_nothing_is_due_at_once_is_paid():
    assert fold([EventChange(kind="finalized"), EventChange(kind="open")]).status == "paid"
    credit = EventChange(kind="payment", amount_cents=100)
    assert fold([OPENED[0], credit]).status == "finalized"
    assert fold([OPENED[0], credit, OPENED[1]]).status == "paid"


def test_a_void_invoice_owes_nothing_and_stays_void():
    state = fold([*OPENED, EventChange(kind="void", amount_cents=100)])
    assert (state.status, state.amount_due_cents) == ("void", 0)
    assert after(state, EventChange(kind="payment")).status == "void"


def test_a_written_off_invoice_is_paid_when_all_of_it_is_recovered():
    state = fold([*OPENED, EventChange(kind="uncollectible", amount_cents=100)])
    assert (state.status, state.amount_due_cents) == ("uncollectible", 100)
    for cents, status in ((30, "uncollectible"), (70, "paid")):
        state = after(state, EventChange(kind="recovered", amount_cents=cents))
        state = after(state, EventChange(kind="payment", amount_cents=cents))
        assert state.status == status


@given(st.lists(st.tuples(st.sampled_from(["payment", "credit_note"]), st.integers(0, 60)), max_size=30))
def test_what_is_due_paid_and_credited_is_always_the_total(steps):
    state = fold(OPENED)
    for kind, wanted in steps:
        cents = min(wanted, state.amount_due_cents)
        credited = cents if kind == "credit_note" else 0
        state = after(state, EventChange(kind=kind, amount_cents=cents, credited_cents=credited))
        assert state.amount_due_cents + state.paid_cents + state.credited_cents == 100
        assert (state.status == "paid") == (state.amount_due_cents == 0)
    assert isinstance(state, InvoiceState)
