"""The customer's balance: what the platform owes a tenant from overpayments and credit notes. It pays the next
invoices.

The balance is the sum of its account's entries; there are a few of them for each invoice. Every change is made under
the lock of the tenant's invoices (``events.lock_invoices``).
"""

from sqlmodel import Session

from billing import ledger
from billing.invoices.events import append
from billing.invoices.models import Invoice
from billing.invoices.statuses import EventChange, InvoiceState
from billing.ledger import AccountRef, between
from core.money import NANOS_PER_CENT, cents_to_nanos


def balance_cents(session: Session, tenant_id: str) -> int:
    """What the platform owes the tenant, in whole cents."""
    nanos = -ledger.balance_nanos(session, AccountRef("customer_balance", tenant_id))
    assert nanos % NANOS_PER_CENT == 0, "only whole cents are moved to and from a balance"
    return nanos // NANOS_PER_CENT


def apply(session: Session, invoice: Invoice, state: InvoiceState) -> InvoiceState:
    """Pay a new invoice from the balance, as far as it goes. An invoice below zero is added to the balance."""
    due_cents = state.amount_due_cents
    cents = min(due_cents, balance_cents(session, invoice.tenant_id)) if due_cents > 0 else due_cents
    if cents == 0:
        return state
    balance, owed = (AccountRef(kind, invoice.tenant_id) for kind in ("customer_balance", "receivable"))
    transfer_id = ledger.post(session, "balance", between(balance, owed, cents_to_nanos(cents)))
    change = EventChange(kind="payment", amount_cents=cents)
    return append(session, invoice.id, state, change, source="balance", transfer_id=transfer_id)
