"""Reads invoices. ``billing.invoices.closing`` writes them once; they never change."""

from decimal import Decimal
from typing import cast

from sqlmodel import Session, col, select

from billing.invoices.models import Invoice, InvoiceLine
from billing.settings import INVOICES_PAGE_MAX
from billing.views import InvoiceDetail, InvoiceLineView, InvoiceView, LineKind, LineUnit


def list_invoices(
    session: Session, *, tenant_id: str | None, after: str | None = None, limit: int = 50
) -> list[InvoiceView]:
    """Invoices, newest first. ``tenant_id`` None means every tenant, for admins only. ``after`` is the last id of the
    previous page.
    """
    assert 1 <= limit <= INVOICES_PAGE_MAX, f"a page holds 1 to {INVOICES_PAGE_MAX} invoices"
    statement = select(Invoice).order_by(col(Invoice.id).desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(Invoice.tenant_id == tenant_id)
    if after is not None:
        statement = statement.where(Invoice.id < after)
    return [invoice_view(invoice) for invoice in session.exec(statement)]


def get_invoice(session: Session, *, invoice_id: str, tenant_id: str | None) -> InvoiceDetail | None:
    """An invoice with its lines. None when it does not exist or belongs to another tenant than ``tenant_id``."""
    statement = select(Invoice).where(Invoice.id == invoice_id)
    if tenant_id is not None:
        statement = statement.where(Invoice.tenant_id == tenant_id)
    invoice = session.exec(statement).first()
    if invoice is None:
        return None
    lines = session.exec(
        select(InvoiceLine).where(InvoiceLine.invoice_id == invoice_id).order_by(col(InvoiceLine.position))
    )
    return InvoiceDetail(
        invoice=invoice_view(invoice),
        lines=tuple(_line_view(line) for line in lines),
    )


def invoice_view(invoice: Invoice) -> InvoiceView:
    """The invoice as other packages see it, with its number in the printed form."""
    return InvoiceView(
        id=invoice.id,
        number=f"TNR-{invoice.number:06d}",
        tenant_id=invoice.tenant_id,
        period_start=invoice.period_start,
        period_end=invoice.period_end,
        status=invoice.status,
        currency=invoice.currency,
        total_cents=invoice.total_cents,
        amount_nanos=invoice.amount_nanos,
        created_at=invoice.created_at,
    )


def _line_view(line: InvoiceLine) -> InvoiceLineView:
    """The line in today's words: older lines counted page-milliseconds, and uncached input as ``input_tokens``."""
    in_milliseconds = line.unit == "page_millisecond"
    quantity = line.quantity.scaleb(-3) if in_milliseconds else line.quantity
    return InvoiceLineView(
        id=line.id,
        kind=cast("LineKind", "uncached_input_tokens" if line.kind == "input_tokens" else line.kind),
        base_model=line.base_model,
        rank_class=line.rank_class,
        adapter_id=line.adapter_id,
        adapter_name=line.adapter_name,
        price_version_id=line.price_version_id,
        late_for=line.late_for,
        unit="page_second" if in_milliseconds else cast("LineUnit", line.unit),
        quantity=plain(quantity),
        unit_price_nanos=line.unit_price_nanos,
        amount_nanos=line.amount_nanos,
        amount_cents=line.amount_cents,
        request_count=line.request_count,
        tier=line.tier,
        used_units=None if line.used_units is None else plain(line.used_units),
        description=line.description,
        source_id=line.source_id,
        covers_from=line.covers_from,
        covers_until=line.covers_until,
    )


def plain(quantity: Decimal) -> Decimal:
    """The same number without trailing zeros and without an exponent."""
    whole = quantity.to_integral_value()
    return whole if whole == quantity else quantity.normalize()
