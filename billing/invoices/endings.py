"""Ends open invoices: voids one that was wrong, and writes off one that cannot be collected."""

from sqlmodel import Session

from billing import ledger
from billing.invoices import settlement
from billing.invoices.credit_note_queries import credited_tax_cents
from billing.invoices.events import append, lock_invoice, paid_cents
from billing.invoices.models import Invoice
from billing.invoices.queries import find_invoice, read_invoice
from billing.invoices.statuses import EventChange, InvoiceState
from billing.ledger import AccountRef, Leg, Posting
from billing.subscriptions.billed_until import hold_subscriptions
from billing.views import InvoiceView
from core.errors import Conflict
from core.ids import new_id
from core.money import cents_to_nanos


def void_invoice(session: Session, *, invoice_id: str, reason: str, actor: str | None = None) -> InvoiceView:
    """Void an open invoice of which nothing is paid in money: its revenue and tax are taken back, the credit and the
    balance that it used are returned, and its usage is on no standing invoice. Raises NotFound, and Conflict for any
    other invoice.
    """
    invoice, state = _lock_with_credit(session, invoice_id)
    _require_open(invoice, state, "void")
    if money_cents := paid_cents(session, invoice_id, "stripe", "manual"):
        raise Conflict(
            f"invoice_id: {money_cents} cents of {invoice_id} are paid. Issue a credit note for what is wrong.",
            code="invoice_partly_paid",
            param="invoice_id",
        )
    balance_cents = paid_cents(session, invoice_id, "balance")
    credit_cents = settlement.give_back(session, invoice)
    assert state.paid_cents == balance_cents + credit_cents, "without money, credit and the balance have paid"
    tax_cents = invoice.tax_cents - credited_tax_cents(session, invoice_id)
    sides = (
        (AccountRef("revenue"), state.amount_due_cents + state.paid_cents - tax_cents),
        (AccountRef("tax_payable"), tax_cents),
        (AccountRef("customer_balance", invoice.tenant_id), -balance_cents),
        (AccountRef("receivable", invoice.tenant_id), -(state.amount_due_cents + credit_cents)),
    )
    legs = tuple(Leg(account, cents_to_nanos(cents)) for account, cents in sides if cents)
    posting = Posting(transfer_id=new_id("tr"), kind="void", legs=legs)
    ledger.post(session, posting)
    change = EventChange(kind="void", amount_cents=state.amount_due_cents)
    append(session, invoice_id, state, change, transfer_id=posting.transfer_id, reason=reason, actor=actor)
    settlement.stop_collecting(session, invoice, "void")
    return read_invoice(session, invoice_id)


def _lock_with_credit(session: Session, invoice_id: str) -> tuple[Invoice, InvoiceState]:
    """An invoice and its state. The tenant's credit cannot change either; it is locked first, as by a close."""
    invoice = find_invoice(session, invoice_id=invoice_id, tenant_id=None)
    if invoice is not None:
        hold_subscriptions(session, [invoice.tenant_id])
    return lock_invoice(session, invoice_id)


def write_off(session: Session, *, invoice_id: str, reason: str, actor: str | None = None) -> InvoiceView:
    """Mark an open invoice as uncollectible: what is due becomes bad debt. A later payment recovers it. Raises
    NotFound, and Conflict for an invoice that is not open.
    """
    invoice, state = lock_invoice(session, invoice_id)
    _require_open(invoice, state, "write off")
    nanos = cents_to_nanos(state.amount_due_cents)
    legs = (Leg(AccountRef("bad_debt"), nanos), Leg(AccountRef("receivable", invoice.tenant_id), -nanos))
    posting = Posting(transfer_id=new_id("tr"), kind="write_off", legs=legs)
    ledger.post(session, posting)
    change = EventChange(kind="uncollectible", amount_cents=state.amount_due_cents)
    append(session, invoice_id, state, change, transfer_id=posting.transfer_id, reason=reason, actor=actor)
    settlement.stop_collecting(session, invoice, "uncollectible")
    return read_invoice(session, invoice_id)


def _require_open(invoice: Invoice, state: InvoiceState, act: str) -> None:
    if state.status != "open":
        fix = "Issue a credit note for what is wrong." if state.status == "paid" else "Nothing is collected for it."
        raise Conflict(
            f"invoice_id: {invoice.id} is {state.status}; only an open invoice can be ended ({act}). {fix}",
            code="invoice_not_open",
            param="invoice_id",
        )
