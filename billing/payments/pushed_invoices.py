"""Which invoices one invoice at Stripe collects. Small ones are collected with a later invoice of their tenant."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from billing.payments.models import PushedInvoice


def collecting(session: Session, invoice_id: str) -> PushedInvoice | None:
    """The invoice whose invoice at Stripe collects this one: mostly itself."""
    row = session.get(PushedInvoice, invoice_id)
    if row is None or row.pushed_with is None:
        return None
    return row if row.pushed_with == invoice_id else session.get(PushedInvoice, row.pushed_with)


def collected_with(session: Session, invoice_id: str) -> Sequence[PushedInvoice]:
    """The invoices that the Stripe invoice of this one collects, itself included, in the order of their ids."""
    return session.exec(
        select(PushedInvoice).where(PushedInvoice.pushed_with == invoice_id).order_by(col(PushedInvoice.invoice_id))
    ).all()


def invoices_at(session: Session, stripe_invoice: str) -> list[str]:
    """The ids of the invoices that an invoice at Stripe collects or collected."""
    main = session.exec(select(PushedInvoice.invoice_id).where(PushedInvoice.stripe_invoice == stripe_invoice)).first()
    if main is None:
        return []
    return sorted({main, *(each.invoice_id for each in collected_with(session, main))})
