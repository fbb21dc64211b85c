"""Issues credit notes: documents that take back a part of a final invoice, by amount or by line, with its tax.

A note first lowers what is still due. The rest goes to the customer's balance, or is paid back as a refund. All notes
of an invoice together credit at most its net and its tax, to the cent; the database refuses more.
"""

from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, select

from billing import ledger
from billing.invoices.credit_note_queries import credited, find_note
from billing.invoices.events import append, lock_invoice, paid_cents, payment_intents
from billing.invoices.models import CreditNote, CreditNoteTaxLine, Invoice, InvoiceLine
from billing.invoices.numbering import seal
from billing.invoices.queries import read_taxes
from billing.invoices.statuses import EventChange, InvoiceState
from billing.invoices.views import CreditDestination, CreditNoteView
from billing.ledger import AccountRef
from billing.payments import dunning, outbox, returned_payments
from billing.payments.operations import Refund
from billing.tax.calculation import TaxLine, credited_tax
from core.db import database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import new_id
from core.money import cents_to_nanos


class _Parts(NamedTuple):
    """Where the total of a note goes."""

    due_cents: int
    balance_cents: int
    refund_cents: int


def issue_credit_note(
    session: Session,
    *,
    invoice_id: str,
    to: CreditDestination,
    reason: str,
    amount_cents: int | None = None,
    line_id: str | None = None,
    idempotency: str | None = None,
    actor: str | None = None,
) -> CreditNoteView:
    """Credit ``amount_cents`` of an invoice's net, or what is left of one of its lines (of which ``amount_cents`` may
    be a part), and the tax on it. A second call with the same ``idempotency`` returns the first one's note.

    Raises NotFound for the invoice or the line, InvalidRequest for an amount below one cent, and Conflict for an
    invoice that is void, for more than is left, and for a refund of more than was paid in money. The caller commits
    next.
    """
    if amount_cents is None and line_id is None:
        raise InvalidRequest("amount_cents: give an amount in cents, or a line_id.", param="amount_cents")
    if amount_cents is not None and amount_cents <= 0:
        raise InvalidRequest(f"amount_cents is {amount_cents}; credit at least one cent.", param="amount_cents")
    invoice, state = lock_invoice(session, invoice_id)
    known = _known(session, invoice.tenant_id, idempotency)
    if known is not None:
        return _same(session, known, invoice_id, amount_cents, line_id, to)
    if state.status == "void":
        raise Conflict(
            f"invoice_id: {invoice_id} is void, so nothing of it is owed. Credit the invoice that replaces it.",
            code="invoice_void",
            param="invoice_id",
        )
    credited_before = credited(session, invoice_id).net_cents
    net_cents = _net(session, invoice, credited_before, amount_cents, line_id)
    taxes = credited_tax(
        read_taxes(session, invoice_id),
        net_cents=invoice.net_cents,
        credited_before=credited_before,
        credited_now=net_cents,
    )
    tax_cents = sum(tax.tax_cents for tax in taxes)
    parts = _parts(session, invoice, state, net_cents + tax_cents, to)
    note = CreditNote(
        id=new_id("cn"),
        invoice_id=invoice_id,
        tenant_id=invoice.tenant_id,
        line_id=line_id,
        net_cents=net_cents,
        tax_cents=tax_cents,
        total_cents=net_cents + tax_cents,
        destination=to,
        **parts._asdict(),
        reason=reason,
        reference=idempotency,
        transfer_id=_post(session, invoice, state, parts, net_cents=net_cents, tax_cents=tax_cents),
        created_at=database_now(session),
    )
    return _issue(session, note, taxes, state, actor)


def _issue(
    session: Session, note: CreditNote, taxes: list[TaxLine], state: InvoiceState, actor: str | None
) -> CreditNoteView:
    """Write the note and its event, end dunning where nothing is due any more, queue its refund, and number it last."""
    _write(session, note, taxes)
    change = EventChange(kind="credit_note", amount_cents=note.due_cents, credited_cents=note.total_cents)
    append(session, note.invoice_id, state, change, credit_note_id=note.id, reason=note.reason, actor=actor)
    if note.due_cents:
        dunning.end_if_paid(session, note.invoice_id)
    if note.refund_cents:
        refund = Refund(refund_id=note.id, invoice_id=note.invoice_id, amount_cents=note.refund_cents)
        outbox.enqueue(session, note.tenant_id, refund)
    seal(session, "credit_note", note.id, note.tenant_id)
    return _read(session, note.id)


def _known(session: Session, tenant_id: str, reference: str | None) -> CreditNote | None:
    if reference is None:
        return None
    wanted = select(CreditNote).where(CreditNote.tenant_id == tenant_id, CreditNote.reference == reference)
    return session.exec(wanted).first()


def _same(
    session: Session,
    known: CreditNote,
    invoice_id: str,
    amount_cents: int | None,
    line_id: str | None,
    to: CreditDestination,
) -> CreditNoteView:
    same_amount = amount_cents is None or amount_cents == known.net_cents
    if (known.invoice_id, known.line_id, known.destination) != (invoice_id, line_id, to) or not same_amount:
        raise Conflict(
            f"idempotency: {known.reference!r} is {known.id}, a note of {known.net_cents} cents for "
            f"{known.invoice_id}. Use another one for another note.",
            code="credit_note_reference_used",
            param="idempotency",
        )
    return _read(session, known.id)


def _read(session: Session, note_id: str) -> CreditNoteView:
    note = find_note(session, note_id)
    assert note is not None, "it was written before"
    return note


def _net(
    session: Session, invoice: Invoice, credited_before: int, amount_cents: int | None, line_id: str | None
) -> int:
    """The net amount to credit. Raises Conflict when the invoice or the line has less left."""
    left, of = invoice.net_cents - credited_before, invoice.id
    if line_id is not None:
        line = session.get(InvoiceLine, line_id)
        if line is None or line.invoice_id != invoice.id:
            raise NotFound(f"line_id: {invoice.id} has no line {line_id}.", code="line_not_found", param="line_id")
        left_of_line = line.amount_cents - credited(session, invoice.id, line_id).net_cents
        if amount_cents is None and left_of_line > 0:
            amount_cents = left_of_line
        left, of = min(left, left_of_line), line_id
    if amount_cents is None or amount_cents > left:
        raise Conflict(
            f"amount_cents: {max(left, 0)} cents net are left to credit of {of}. Credit at most that.",
            code="credit_exceeds_invoice",
            param="amount_cents" if line_id is None else "line_id",
        )
    return amount_cents


def _parts(session: Session, invoice: Invoice, state: InvoiceState, total_cents: int, to: CreditDestination) -> _Parts:
    due_cents = min(total_cents, state.amount_due_cents)
    rest_cents = total_cents - due_cents
    if to != "refund":
        return _Parts(due_cents, rest_cents, 0)
    paid = paid_cents(session, invoice.id, "stripe", "manual")
    lost_cents = returned_payments.lost_cents(session, payment_intents(session, invoice.id))
    refundable_cents = max(0, paid - lost_cents - credited(session, invoice.id).refund_cents)
    if rest_cents > refundable_cents:
        raise Conflict(
            f"to: {rest_cents} cents cannot be refunded; {refundable_cents} cents of this invoice were paid in money "
            'and not refunded or disputed. Credit the rest with to "balance".',
            code="refund_exceeds_paid",
            param="to",
        )
    return _Parts(due_cents, 0, rest_cents)


def _post(
    session: Session, invoice: Invoice, state: InvoiceState, parts: _Parts, *, net_cents: int, tax_cents: int
) -> str:
    """What is credited of a written-off invoice is no bad debt after all."""
    owed = AccountRef("receivable", invoice.tenant_id) if state.status != "uncollectible" else AccountRef("bad_debt")
    sides = {
        AccountRef("revenue"): net_cents,
        AccountRef("tax_payable"): tax_cents,
        owed: -parts.due_cents,
        AccountRef("customer_balance", invoice.tenant_id): -parts.balance_cents,
        AccountRef("cash"): -parts.refund_cents,
    }
    legs = {account: cents_to_nanos(cents) for account, cents in sides.items() if cents}
    return ledger.post(session, "credit_note", legs)


def _write(session: Session, note: CreditNote, taxes: list[TaxLine]) -> None:
    if taxes:
        session.exec(
            sa.insert(CreditNoteTaxLine),
            params=[
                {"credit_note_id": note.id, "position": position, **msgspec.structs.asdict(tax)}
                for position, tax in enumerate(taxes, start=1)
            ],
        )
    session.add(note)
    session.flush()
