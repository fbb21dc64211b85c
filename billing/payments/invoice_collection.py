"""Queues what invoices, credit notes and their ends mean for the collection at Stripe. Invoices call it in their own
transactions; nothing is sent here.
"""

from typing import Literal

from sqlmodel import Session

from billing.invoices.queries import read_invoice
from billing.invoices.views import InvoiceDocument
from billing.payments import dunning, outbox
from billing.payments.operations import DeductPayment, EndInvoice, PushCreditNote, PushedLine, PushInvoice
from billing.payments.pushed_invoices import collected_with, collecting
from billing.payments.settings import DESCRIPTION_LENGTH_MAX
from billing.views import LINE_KINDS_IN_WORDS, InvoiceLineView


def push(session: Session, document: InvoiceDocument) -> str | None:
    """Queue the collection of a final invoice: its lines, credits and taxes, and what was paid when it was made."""
    invoice = document.invoice
    lines = [
        *(PushedLine(id=each.id, description=_text(each), amount_cents=each.amount_cents) for each in document.lines),
        *(
            PushedLine(id=f"credit:{number}", description="Promotional credit", amount_cents=-each.amount_cents)
            for number, each in enumerate(document.credits)
        ),
        *(
            PushedLine(id=f"tax:{number}", description=each.name, amount_cents=each.tax_cents)
            for number, each in enumerate(document.tax_lines)
        ),
    ]
    total_cents = sum(line.amount_cents for line in lines)
    assert total_cents == invoice.total_cents, f"the parts of {invoice.id} sum to its total"
    paid_cents = invoice.total_cents - invoice.amount_due_cents
    if paid_cents:
        lines.append(PushedLine(id="paid", description="Paid from credit and balance", amount_cents=-paid_cents))
    operation = PushInvoice(
        invoice_id=invoice.id, number=invoice.number, lines=tuple(lines), due_cents=invoice.amount_due_cents
    )
    return outbox.enqueue(session, invoice.tenant_id, operation)


def push_credit_note(
    session: Session,
    *,
    tenant_id: str,
    note_id: str,
    invoice_id: str,
    reason: str,
    due_cents: int,
    balance_cents: int,
    refund_cents: int,
) -> None:
    """Queue what a credit note changes: the part that lowers what is due, that went to the balance, and the refund."""
    parts: tuple[tuple[Literal["amount_due", "balance", "refund"], int], ...] = (
        ("amount_due", due_cents),
        ("balance", balance_cents),
        ("refund", refund_cents),
    )
    if due_cents:
        _end_dunning_if_settled(session, invoice_id)
    for to, amount_cents in parts:
        if amount_cents:
            part = PushCreditNote(
                note_id=f"{note_id}:{to}",
                invoice_id=invoice_id,
                amount_cents=amount_cents,
                memo=reason[:DESCRIPTION_LENGTH_MAX] or "Credit",
                to=to,
            )
            outbox.enqueue(session, tenant_id, part)


def deduct(session: Session, *, tenant_id: str, invoice_id: str, paid_cents: int, payment: str) -> None:
    """Queue that a part of an invoice was paid in another way than by Stripe; ``payment`` names it."""
    memo = f"Paid outside Stripe, {payment}"[:DESCRIPTION_LENGTH_MAX]
    _end_dunning_if_settled(session, invoice_id)
    operation = DeductPayment(payment_id=payment, invoice_id=invoice_id, amount_cents=paid_cents, memo=memo)
    outbox.enqueue(session, tenant_id, operation)


def end(
    session: Session, *, tenant_id: str, invoice_id: str, how: Literal["void", "uncollectible", "paid_elsewhere"]
) -> None:
    """Queue the end of an invoice's collection. Its dunning ends at once, also while Stripe does not answer."""
    dunning.collected(session, invoice_id, state="ended")
    _end_dunning_if_settled(session, invoice_id)
    outbox.enqueue(session, tenant_id, EndInvoice(invoice_id=invoice_id, how=how))


def _end_dunning_if_settled(session: Session, invoice_id: str) -> None:
    """A tenant is not suspended for what it does not owe. Called before the queue is locked, as in ``dunning``."""
    main = collecting(session, invoice_id)
    if main is None:
        return
    parts = collected_with(session, main.invoice_id)
    if not any(read_invoice(session, each.invoice_id).amount_due_cents for each in parts):
        dunning.collected(session, main.invoice_id, state="ended")


def _text(line: InvoiceLineView) -> str:
    words = [line.description or LINE_KINDS_IN_WORDS[line.kind]]
    words += [each for each in (line.base_model, line.adapter_name) if each]
    if line.service_tier is not None:
        words.append(line.service_tier)
    return ", ".join(words)[:DESCRIPTION_LENGTH_MAX]
