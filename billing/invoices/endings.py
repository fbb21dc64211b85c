"""Ends open invoices: voids one that was wrong, and writes off one that cannot be collected."""

from sqlmodel import Session

from billing import ledger
from billing.invoices import settlement
from billing.invoices.credit_note_queries import credited_tax_cents
from billing.invoices.events import append, lock_invoice
from billing.invoices.models import Invoice
from billing.invoices.queries import read_invoice
from billing.invoices.statuses import EventChange, InvoiceState
from billing.ledger import AccountRef, Leg, Posting
from billing.views import InvoiceView
from core.errors import Conflict
from core.ids import new_id
from core.money import cents_to_nanos


def void_invoice(session: Session, *, invoice_id: str, reason: str, actor: str | None = None) -> InvoiceView:
    """Void an open invoice of which nothing is paid: its revenue and tax are taken back, and its usage is on no
    standing invoice. Raises NotFound, and Conflict for any other invoice.
    """
    invoice, state = lock_invoice(session, invoice_id)
    _require_open(invoice, state, "void")
    if state.paid_cents:
        raise Conflict(
            f"invoice_id: {state.paid_cents} cents of {invoice_id} are paid. Issue a credit note for what is wrong.",
            code="invoice_partly_paid",
            param="invoice_id",
        )
    tax_cents = invoice.tax_cents - credited_tax_cents(session, invoice_id)
    legs = [
        Leg(AccountRef("revenue"), cents_to_nanos(state.amount_due_cents - tax_cents)),
        Leg(AccountRef("receivable", invoice.tenant_id), -cents_to_nanos(state.amount_due_cents)),
    ]
    if tax_cents:
        legs.append(Leg(AccountRef("tax_payable"), cents_to_nanos(tax_cents)))
    posting = Posting(transfer_id=new_id("tr"), kind="void", legs=tuple(legs))
    ledger.post(session, posting)
    change = EventChange(kind="void", amount_cents=state.amount_due_cents)
    append(session, invoice_id, state, change, transfer_id=posting.transfer_id, reason=reason, actor=actor)
    settlement.stop_collecting(session, invoice, "void")
    return read_invoice(session, invoice_id)


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
