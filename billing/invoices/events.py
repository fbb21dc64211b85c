"""Reads the state of invoices and appends their events. Everything that changes an invoice's state, or a customer's
balance, first locks the tenant's invoices, so two changes never start from the same state.
"""

from typing import TypedDict, Unpack, cast

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.invoices.models import Invoice, InvoiceEvent
from billing.invoices.statuses import EventChange, InvoiceState, InvoiceStatus, PaymentSource, after
from billing.locks import serialize_decision
from core.db import total
from core.errors import NotFound


def lock_invoices(session: Session, tenant_id: str) -> None:
    """Let no other transaction change the tenant's invoices or balance before this one ends."""
    serialize_decision(session, f"the invoices of {tenant_id}")


def lock_invoice(session: Session, invoice_id: str) -> tuple[Invoice, InvoiceState]:
    """An invoice and its state, which nothing else can change before the transaction ends. Raises NotFound."""
    invoice = session.get(Invoice, invoice_id)
    if invoice is None:
        raise NotFound("Invoice not found.", code="invoice_not_found")
    lock_invoices(session, invoice.tenant_id)
    return invoice, read_state(session, invoice_id)


def read_state(session: Session, invoice_id: str) -> InvoiceState:
    """The state of an invoice that exists."""
    newest = session.exec(
        select(InvoiceEvent)
        .where(InvoiceEvent.invoice_id == invoice_id)
        .order_by(col(InvoiceEvent.seq).desc())
        .limit(1)
    ).first()
    return InvoiceState() if newest is None else state_of(newest)


def paid_cents(session: Session, invoice_id: str, *sources: PaymentSource) -> int:
    """What these sources have paid of an invoice."""
    of_sources = InvoiceEvent.invoice_id == invoice_id, col(InvoiceEvent.source).in_(sources)
    return session.exec(select(total(InvoiceEvent.amount_cents)).where(*of_sources)).one()


def payment_intents(session: Session, invoice_id: str) -> list[str]:
    """The payments at Stripe that paid of an invoice, in the order of their ids."""
    references = session.exec(
        select(InvoiceEvent.reference).where(InvoiceEvent.invoice_id == invoice_id, InvoiceEvent.source == "stripe")
    )
    return sorted({each.removeprefix("stripe:").split(":")[0] for each in references if each})


def state_of(event: InvoiceEvent) -> InvoiceState:
    """The state that an event left."""
    return InvoiceState(
        seq=event.seq,
        status=cast("InvoiceStatus", event.status),
        amount_due_cents=event.amount_due_cents,
        paid_cents=event.paid_cents,
        credited_cents=event.credited_cents,
    )


class EventFacts(TypedDict, total=False):
    """What else an event knows: the columns of ``InvoiceEvent``."""

    transfer_id: str | None
    source: PaymentSource
    reference: str | None
    surplus_cents: int
    credit_note_id: str
    reason: str | None
    actor: str | None
    write_off: bool


def append(
    session: Session, invoice_id: str, state: InvoiceState, change: EventChange, **facts: Unpack[EventFacts]
) -> InvoiceState:
    """Write the next event of an invoice whose state is ``state``. Returns the state after it."""
    result = after(state, change)
    session.exec(
        sa.insert(InvoiceEvent).values(
            invoice_id=invoice_id,
            seq=result.seq,
            kind=change.kind,
            amount_cents=change.amount_cents,
            status=result.status,
            amount_due_cents=result.amount_due_cents,
            paid_cents=result.paid_cents,
            credited_cents=result.credited_cents,
            created_at=sa.func.clock_timestamp(),
            **({"surplus_cents": 0, "write_off": False} | facts),
        )
    )
    return result
