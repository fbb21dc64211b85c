"""Records what was paid for an invoice. What is beyond the amount due goes to the customer's balance and is flagged:
paid twice, too much, or for an invoice that is void.
"""

from typing import Literal

import structlog
from sqlmodel import Session, select

from billing import ledger, metrics
from billing.invoices.events import append, lock_invoice
from billing.invoices.models import Invoice, InvoiceEvent
from billing.invoices.queries import read_invoice
from billing.invoices.statuses import EventChange, InvoiceState
from billing.invoices.views import InvoiceView
from billing.ledger import AccountRef, between
from billing.locks import serialize_decision
from core.errors import Conflict, InvalidRequest
from core.money import cents_to_nanos

MoneySource = Literal["stripe", "manual"]
"""How money comes in. Credit and the tenant's balance pay when the invoice is made (``finalizing``, ``balance``)."""

_log = structlog.get_logger()


def record_payment(
    session: Session,
    *,
    invoice_id: str,
    amount_cents: int,
    source: MoneySource,
    reference: str,
    actor: str | None = None,
) -> InvoiceView:
    """Pay an invoice, once for each ``reference`` of its source. Returns the invoice after it.

    A payment of a written-off invoice recovers it. A surplus goes to the tenant's balance, with a warning.
    Raises NotFound for the invoice, InvalidRequest for an amount that is not positive, and Conflict for a reference
    that named another payment.
    """
    if amount_cents <= 0:
        raise InvalidRequest(
            f"amount_cents is {amount_cents}; a payment is at least one cent. To pay back, issue a credit note.",
            param="amount_cents",
        )
    invoice, state = lock_invoice(session, invoice_id)
    serialize_decision(session, f"the payment {source}:{reference}")  # another tenant may be said to have made it
    known = session.exec(
        select(InvoiceEvent).where(InvoiceEvent.source == source, InvoiceEvent.reference == reference)
    ).first()
    if known is not None:
        _require_same(known, invoice_id, amount_cents)
        return read_invoice(session, invoice_id)
    applied_cents = min(amount_cents, state.amount_due_cents) if state.status in {"open", "uncollectible"} else 0
    surplus_cents = amount_cents - applied_cents
    if state.status == "uncollectible" and applied_cents:
        state = _recover(session, invoice, state, applied_cents)
    if surplus_cents:
        _warn_of_surplus(invoice, state, surplus_cents, reference)
    append(
        session,
        invoice_id,
        state,
        EventChange(kind="payment", amount_cents=applied_cents),
        transfer_id=_post(session, invoice.tenant_id, applied_cents, surplus_cents),
        source=source,
        reference=reference,
        surplus_cents=surplus_cents,
        actor=actor,
    )
    return read_invoice(session, invoice_id)


def _warn_of_surplus(invoice: Invoice, state: InvoiceState, surplus_cents: int, reference: str) -> None:
    metrics.SURPLUS_PAYMENTS.inc()
    _log.warning(
        "a payment exceeds what is due; the surplus is on the balance",
        invoice_id=invoice.id,
        tenant_id=invoice.tenant_id,
        status=state.status,
        surplus_cents=surplus_cents,
        reference=reference,
    )


def _require_same(known: InvoiceEvent, invoice_id: str, amount_cents: int) -> None:
    if (known.invoice_id, known.amount_cents + known.surplus_cents) != (invoice_id, amount_cents):
        raise Conflict(
            f"reference: {known.reference!r} is a payment of {known.amount_cents + known.surplus_cents} cents for "
            f"{known.invoice_id}. Use the reference of this payment.",
            code="payment_reference_used",
            param="reference",
        )


def _recover(session: Session, invoice: Invoice, state: InvoiceState, cents: int) -> InvoiceState:
    """Take back a part of a write-off that is paid after all."""
    legs = between(AccountRef("receivable", invoice.tenant_id), AccountRef("bad_debt"), cents_to_nanos(cents))
    transfer_id = ledger.post(session, "recovery", legs)
    change = EventChange(kind="recovered", amount_cents=cents)
    return append(session, invoice.id, state, change, transfer_id=transfer_id)


def _post(session: Session, tenant_id: str, applied_cents: int, surplus_cents: int) -> str:
    legs = {AccountRef("cash"): cents_to_nanos(applied_cents + surplus_cents)}
    if applied_cents:
        legs[AccountRef("receivable", tenant_id)] = -cents_to_nanos(applied_cents)
    if surplus_cents:
        legs[AccountRef("customer_balance", tenant_id)] = -cents_to_nanos(surplus_cents)
    return ledger.post(session, "payment", legs)
