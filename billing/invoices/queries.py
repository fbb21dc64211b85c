"""Reads invoices. ``billing.invoicing.finalizing`` writes them once; what became of them is read from their events."""

from decimal import Decimal
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from billing.invoices.credit_note_queries import notes_of
from billing.invoices.events import state_of
from billing.invoices.models import Document, Invoice, InvoiceCredit, InvoiceEvent, InvoiceLine, InvoiceTaxLine
from billing.invoices.numbering import printed_number
from billing.invoices.statuses import InvoiceState, InvoiceStatus
from billing.invoices.views import (
    AppliedCredit,
    InvoiceDocument,
    InvoiceEventView,
    InvoiceLineView,
    InvoiceView,
    PaymentView,
)
from billing.settings import INVOICES_PAGE_MAX
from billing.tax.calculation import TaxLine, line_shares
from core.db import newest_first
from core.errors import NotFound
from core.struct_types import view_of


def list_invoices(
    session: Session,
    *,
    tenant_id: str | None,
    status: InvoiceStatus | None = None,
    after: str | None = None,
    limit: int = 50,
) -> list[InvoiceView]:
    """Invoices, newest first. ``tenant_id`` None means every tenant, for admins only. ``after`` is the last id of the
    previous page.
    """
    assert 1 <= limit <= INVOICES_PAGE_MAX, f"a page holds 1 to {INVOICES_PAGE_MAX} invoices"
    statement = newest_first(_with_state(), col(Invoice.id), after=after, limit=limit)
    if tenant_id is not None:
        statement = statement.where(Invoice.tenant_id == tenant_id)
    if status is not None:
        statement = statement.where(_NEWEST.status == status)
    return [_view(*row) for row in session.exec(statement)]


def read_document(session: Session, invoice_id: str, *, tenant_id: str | None = None) -> InvoiceDocument:
    """An invoice with all its parts and everything that happened to it. Raises NotFound, also when it belongs to
    another tenant than ``tenant_id``.
    """
    found = _find(session, invoice_id, tenant_id)
    invoice, document, _ = found
    taxes = read_taxes(session, invoice_id)
    events = session.exec(
        select(InvoiceEvent).where(InvoiceEvent.invoice_id == invoice_id).order_by(col(InvoiceEvent.seq))
    ).all()
    applied = session.exec(
        select(InvoiceCredit).where(InvoiceCredit.invoice_id == invoice_id).order_by(col(InvoiceCredit.position))
    ).all()
    return view_of(
        invoice,
        InvoiceDocument,
        **msgspec.structs.asdict(_view(*found)),
        lines=_lines(session, invoice_id, taxes),
        credits=tuple(view_of(each, AppliedCredit) for each in applied),
        tax_lines=taxes,
        payments=tuple(view_of(event, PaymentView) for event in events if event.kind == "payment"),
        credit_notes=tuple(notes_of(session, invoice_id)),
        events=tuple(view_of(event, InvoiceEventView) for event in events),
        sha256=document.sha256,
    )


def read_invoice(session: Session, invoice_id: str, *, tenant_id: str | None = None) -> InvoiceView:
    """An invoice without its lines. Raises NotFound, also when it belongs to another tenant than ``tenant_id``."""
    return _view(*_find(session, invoice_id, tenant_id))


def invoice_view(invoice: Invoice, number: str, state: InvoiceState) -> InvoiceView:
    """The invoice as other packages see it, with its number in the printed form."""
    return view_of(
        invoice,
        InvoiceView,
        number=number,
        status=state.status,
        paid_cents=state.paid_cents,
        credited_cents=state.credited_cents,
        amount_due_cents=state.amount_due_cents,
    )


_NEWEST = aliased(
    InvoiceEvent,
    sa.select(InvoiceEvent)
    .where(col(InvoiceEvent.invoice_id) == col(Invoice.id))
    .order_by(col(InvoiceEvent.seq).desc())
    .limit(1)
    .correlate(Invoice)
    .lateral("newest_event"),
)


def _with_state() -> Any:  # a select of three tables
    return (
        select(Invoice, Document, _NEWEST)
        .join(Document, col(Document.document_id) == col(Invoice.id))
        .join(_NEWEST, sa.true())
    )


def _find(session: Session, invoice_id: str, tenant_id: str | None) -> tuple[Invoice, Document, InvoiceEvent]:
    statement = _with_state().where(Invoice.id == invoice_id)
    if tenant_id is not None:
        statement = statement.where(Invoice.tenant_id == tenant_id)
    found: tuple[Invoice, Document, InvoiceEvent] | None = session.exec(statement).first()
    if found is None:
        raise NotFound("Invoice not found.", code="invoice_not_found")
    return found


def _view(invoice: Invoice, document: Document, newest: InvoiceEvent) -> InvoiceView:
    return invoice_view(invoice, printed_number("invoice", document.number), state_of(newest))


def read_taxes(session: Session, invoice_id: str) -> tuple[TaxLine, ...]:
    """The taxes of an invoice, in printing order."""
    rows = session.exec(
        select(InvoiceTaxLine).where(InvoiceTaxLine.invoice_id == invoice_id).order_by(col(InvoiceTaxLine.position))
    )
    return tuple(view_of(tax, TaxLine) for tax in rows)


def _lines(session: Session, invoice_id: str, taxes: tuple[TaxLine, ...]) -> tuple[InvoiceLineView, ...]:
    lines = session.exec(
        select(InvoiceLine).where(InvoiceLine.invoice_id == invoice_id).order_by(col(InvoiceLine.position))
    ).all()
    if not any(tax.tax_cents for tax in taxes):
        return tuple(line_view(line, 0) for line in lines)
    shares = line_shares([tax.tax_cents for tax in taxes], [line.amount_cents for line in lines])
    return tuple(line_view(line, share) for line, share in zip(lines, shares, strict=True))


def line_view(line: InvoiceLine, tax_cents: int) -> InvoiceLineView:
    """The line as the API shows it, with its share of the invoice's tax."""
    return view_of(
        line,
        InvoiceLineView,
        quantity=plain(line.quantity),
        used_units=None if line.used_units is None else plain(line.used_units),
        tax_cents=tax_cents,
        batch_discount_nanos=batch_discount_nanos(line.quantity, line.list_price_nanos, line.amount_nanos),
    )


def batch_discount_nanos(quantity: Decimal, list_price_nanos: int | None, amount_nanos: int) -> int:
    """What the batch factor took off a line: its quantity at the list price, cut below one nanodollar, less its amount.
    0 without a list price.
    """
    return 0 if list_price_nanos is None else int(quantity * list_price_nanos) - amount_nanos


def plain(quantity: Decimal) -> Decimal:
    """The same number without trailing zeros and without an exponent."""
    whole = quantity.to_integral_value()
    return whole if whole == quantity else quantity.normalize()
