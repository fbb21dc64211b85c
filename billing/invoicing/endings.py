"""Ends open invoices: voids one that was wrong, whose lines the next invoice has, and writes off one that cannot be
collected.
"""

from sqlmodel import Session, select

from billing import ledger
from billing.credits import burning
from billing.invoices import carrying
from billing.invoices.credit_note_queries import credited
from billing.invoices.events import append, lock_invoice, paid_cents
from billing.invoices.models import Invoice, InvoiceCredit
from billing.invoices.queries import read_invoice
from billing.invoices.statuses import EventChange, InvoiceState
from billing.invoices.views import InvoiceView
from billing.ledger import AccountRef, between
from billing.payments import dunning
from billing.subscriptions.billed_until import lock_subscriptions
from core.db import total
from core.errors import Conflict
from core.money import cents_to_nanos


def void_invoice(
    session: Session, *, invoice_id: str, reason: str, write_off: bool = False, actor: str | None = None
) -> InvoiceView:
    """Void an open invoice of which nothing is paid in money. Its tax is taken back, and the credit and the balance
    that it used are returned. Its lines are on the tenant's next invoice, less what credit notes have taken; with
    ``write_off`` they are on none, and their revenue is taken back. Raises NotFound, and Conflict for any other
    invoice.
    """
    invoice, state = _lock_with_credit(session, invoice_id)
    _require_open(invoice, state, "void")
    if money_cents := paid_cents(session, invoice_id, "stripe", "manual"):
        raise Conflict(
            f"invoice_id: {money_cents} cents of {invoice_id} are paid. Issue a credit note for what is wrong.",
            code="invoice_partly_paid",
            param="invoice_id",
        )
    credited_tax = credited(session, invoice_id).tax_cents
    credited_net = state.credited_cents - credited_tax
    if not write_off:
        carrying.carry_void(session, invoice, credited_net)
    transfer_id = _post_void(session, invoice, state, credited_net, credited_tax, write_off=write_off)
    change = EventChange(kind="void", amount_cents=state.amount_due_cents)
    append(
        session, invoice_id, state, change,
        transfer_id=transfer_id, write_off=write_off, reason=reason, actor=actor,
    )  # fmt: skip
    dunning.end_if_paid(session, invoice_id)
    return read_invoice(session, invoice_id)


def _post_void(
    session: Session, invoice: Invoice, state: InvoiceState, credited_net: int, credited_tax: int, *, write_off: bool
) -> str:
    """Take the invoice's posting back, so that its usage is not billed; with ``write_off``, its revenue too."""
    balance_cents = paid_cents(session, invoice.id, "balance")
    credit_cents = burning.give_back(session, invoice.tenant_id, invoice.id)
    assert state.paid_cents == balance_cents + credit_cents, "without money, credit and the balance have paid"
    promotional = select(total(InvoiceCredit.amount_nanos)).where(InvoiceCredit.invoice_id == invoice.id)
    promotional_nanos = session.exec(promotional).one()
    usage_nanos = invoice.amount_nanos - cents_to_nanos(credited_net)
    unbilled_nanos = -promotional_nanos if write_off else usage_nanos - promotional_nanos
    receivable_cents = state.amount_due_cents + credit_cents
    sides = {
        AccountRef("tax_payable"): cents_to_nanos(invoice.tax_cents - credited_tax),
        AccountRef("customer_balance", invoice.tenant_id): -cents_to_nanos(balance_cents),
        AccountRef("receivable", invoice.tenant_id): -cents_to_nanos(receivable_cents),
        AccountRef("usage_unbilled", invoice.tenant_id): unbilled_nanos,
        AccountRef("revenue"): usage_nanos if write_off else 0,
        AccountRef("rounding"): cents_to_nanos(invoice.net_cents) - (invoice.amount_nanos - promotional_nanos),
    }
    return ledger.post(session, "void", {account: nanos for account, nanos in sides.items() if nanos})


def _lock_with_credit(session: Session, invoice_id: str) -> tuple[Invoice, InvoiceState]:
    """An invoice and its state. The tenant's credit cannot change either; it is locked first, as by a close."""
    lock_subscriptions(session, [read_invoice(session, invoice_id).tenant_id])
    return lock_invoice(session, invoice_id)


def write_off(session: Session, *, invoice_id: str, reason: str, actor: str | None = None) -> InvoiceView:
    """Mark an open invoice as uncollectible: what is due becomes bad debt. A later payment recovers it. Raises
    NotFound, and Conflict for an invoice that is not open.
    """
    invoice, state = lock_invoice(session, invoice_id)
    _require_open(invoice, state, "write off")
    owed = AccountRef("receivable", invoice.tenant_id)
    transfer_id = ledger.post(
        session, "write_off", between(AccountRef("bad_debt"), owed, cents_to_nanos(state.amount_due_cents))
    )
    change = EventChange(kind="uncollectible", amount_cents=state.amount_due_cents)
    append(session, invoice_id, state, change, transfer_id=transfer_id, reason=reason, actor=actor)
    dunning.end_if_paid(session, invoice_id)
    return read_invoice(session, invoice_id)


def _require_open(invoice: Invoice, state: InvoiceState, act: str) -> None:
    if state.status != "open":
        fix = "Issue a credit note for what is wrong." if state.status == "paid" else "Nothing is collected for it."
        raise Conflict(
            f"invoice_id: {invoice.id} is {state.status}; only an open invoice can be ended ({act}). {fix}",
            code="invoice_not_open",
            param="invoice_id",
        )
