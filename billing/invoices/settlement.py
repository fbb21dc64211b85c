"""Where an invoice meets the rooms of credits and of payments, one call each: promotional credits before tax, paid ones
after it, and the collection of what is due. The calls are part of the invoice's own transaction.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlmodel import Session, select

from billing.charges.lines import DraftInvoiceLine
from billing.credits import burning
from billing.credits.views import CreditUse
from billing.invoices.event_models import CreditNote
from billing.invoices.events import payment_intents
from billing.invoices.models import Invoice, InvoiceCredit
from billing.payments import dunning, outbox, returned_payments
from billing.payments.operations import CollectInvoice, Refund
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


def collect(session: Session, invoice: Invoice) -> None:
    """Queue the collection of a final invoice of which something is due."""
    outbox.enqueue(session, invoice.tenant_id, CollectInvoice(invoice_id=invoice.id))


def collect_less(session: Session, note: CreditNote) -> None:
    """End dunning that a credit note has settled, and queue the refund that it asks for."""
    if note.due_cents:
        dunning.end_if_settled(session, note.invoice_id)
    if note.refund_cents:
        refund = Refund(refund_id=note.id, invoice_id=note.invoice_id, amount_cents=note.refund_cents)
        outbox.enqueue(session, note.tenant_id, refund)


def lost_cents(session: Session, invoice_id: str) -> int:
    """What went back by disputes, or by hand at Stripe, of the payments of an invoice. Where a payment paid several
    invoices, it is counted for each.
    """
    return returned_payments.lost_cents(session, payment_intents(session, invoice_id))


def stop_collecting(session: Session, invoice_id: str) -> None:
    """End the dunning of an invoice of which nothing is collected any more. An attempt that is queued finds that."""
    dunning.end_if_settled(session, invoice_id)
