"""Where an invoice meets the rooms of credits and of payments, one call each: promotional credits before tax, paid ones
after it, and the collection of what is due. The calls are part of the invoice's own transaction.
"""

from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa
from sqlmodel import Session, select

from billing.charges.lines import DraftInvoiceLine
from billing.credits import burning
from billing.credits.views import CreditUse
from billing.invoices.event_models import CreditNote, InvoiceEvent
from billing.invoices.models import Invoice, InvoiceCredit
from billing.invoices.queries import read_document
from billing.payments import invoice_collection, returned_payments
from billing.periods import Period


def apply_promotional(
    session: Session, tenant_id: str, period: Period, lines: Sequence[DraftInvoiceLine], *, invoice_id: str
) -> list[CreditUse]:
    """Burn promotional credits for these lines, posted to the ledger. Returns what was used of each lot."""
    return burning.apply_promotional(session, tenant_id, period, lines, invoice_id=invoice_id)


def plan_credit(session: Session, tenant_id: str) -> burning.CreditPlan:
    """What credits would pay of the tenant's next invoices, one after the other. Writes nothing."""
    return burning.CreditPlan(session, tenant_id)


def apply_paid(session: Session, tenant_id: str, invoice_id: str, due_cents: int) -> int:
    """Burn paid credits for the amount due, posted to the ledger. Returns the cents that they pay."""
    return burning.apply_paid(session, tenant_id, invoice_id, due_cents)


def give_back(session: Session, invoice: Invoice) -> int:
    """Return the credit that a voided invoice used, posted to the ledger. Returns the cents of paid credit."""
    return burning.give_back(session, invoice.tenant_id, invoice.id)


def promotional_nanos(session: Session, invoice_id: str) -> int:
    """What promotional credit paid of an invoice."""
    total = sa.cast(sa.func.coalesce(sa.func.sum(InvoiceCredit.amount_nanos), 0), sa.BigInteger)
    return session.exec(select(total).where(InvoiceCredit.invoice_id == invoice_id)).one()


def collect(session: Session, invoice: Invoice, number: str, due_cents: int) -> None:
    """Queue the collection of a final invoice of which something is due."""
    del number, due_cents  # the document has both
    invoice_collection.push(session, read_document(session, invoice.id))


def collect_less(session: Session, note: CreditNote) -> None:
    """Queue what a credit note changes at the collection, and the refund that it asks for."""
    invoice_collection.push_credit_note(
        session,
        tenant_id=note.tenant_id,
        note_id=note.id,
        invoice_id=note.invoice_id,
        reason=note.reason,
        due_cents=note.due_cents,
        balance_cents=note.balance_cents,
        refund_cents=note.refund_cents,
    )


def lost_cents(session: Session, invoice_id: str) -> int:
    """What went back by disputes, or by hand at Stripe, of the payments of an invoice. Where a payment paid several
    invoices, it is counted for each.
    """
    references = session.exec(
        select(InvoiceEvent.reference).where(InvoiceEvent.invoice_id == invoice_id, InvoiceEvent.source == "stripe")
    )
    return returned_payments.lost_cents(
        session, {each.removeprefix("stripe:").split(":")[0] for each in references if each}
    )


def collect_rest(session: Session, invoice: Invoice, paid_cents: int, *, payment: str) -> None:
    """Queue that a part of an invoice that was paid in another way is not collected."""
    invoice_collection.deduct(
        session, tenant_id=invoice.tenant_id, invoice_id=invoice.id, paid_cents=paid_cents, payment=payment
    )


def stop_collecting(
    session: Session, invoice: Invoice, how: Literal["void", "uncollectible", "paid_elsewhere"]
) -> None:
    """Queue the end of an invoice's collection."""
    invoice_collection.end(session, tenant_id=invoice.tenant_id, invoice_id=invoice.id, how=how)
