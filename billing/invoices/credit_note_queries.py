"""Reads credit notes."""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.invoices.models import CreditNote, CreditNoteTaxLine, Document
from billing.invoices.numbering import printed_number
from billing.invoices.views import CreditNoteView
from billing.settings import INVOICES_PAGE_MAX
from billing.tax.calculation import TaxLine
from core.struct_types import view_of


def notes_of(session: Session, invoice_id: str) -> list[CreditNoteView]:
    """The credit notes of an invoice, oldest first."""
    return _views(session, _notes().where(CreditNote.invoice_id == invoice_id).order_by(col(Document.number)))


def find_note(session: Session, note_id: str) -> CreditNoteView | None:
    """A credit note, if it exists."""
    return next(iter(_views(session, _notes().where(CreditNote.id == note_id))), None)


def credited_tax_cents(session: Session, invoice_id: str) -> int:
    """The tax that all notes of an invoice credit."""
    statement = select(sa.cast(sa.func.coalesce(sa.func.sum(CreditNote.tax_cents), 0), sa.BigInteger)).where(
        CreditNote.invoice_id == invoice_id
    )
    return session.exec(statement).one()


def list_notes(
    session: Session, *, tenant_id: str | None, after: str | None = None, limit: int = 50
) -> list[CreditNoteView]:
    """Credit notes, newest first. ``tenant_id`` None means every tenant, for admins only."""
    assert 1 <= limit <= INVOICES_PAGE_MAX, f"a page holds 1 to {INVOICES_PAGE_MAX} credit notes"
    statement = _notes().order_by(col(CreditNote.id).desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(CreditNote.tenant_id == tenant_id)
    if after is not None:
        statement = statement.where(CreditNote.id < after)
    return _views(session, statement)


def _notes() -> Any:  # a select of two tables
    return select(CreditNote, Document).join(Document, col(Document.document_id) == col(CreditNote.id))


def _views(session: Session, statement: Any) -> list[CreditNoteView]:
    rows = session.exec(statement).all()
    taxes = session.exec(
        select(CreditNoteTaxLine)
        .where(col(CreditNoteTaxLine.credit_note_id).in_([note.id for note, _ in rows]))
        .order_by(col(CreditNoteTaxLine.credit_note_id), col(CreditNoteTaxLine.position))
    ).all()
    return [_view(note, document, [tax for tax in taxes if tax.credit_note_id == note.id]) for note, document in rows]


def _view(note: CreditNote, document: Document, taxes: list[CreditNoteTaxLine]) -> CreditNoteView:
    return view_of(
        note,
        CreditNoteView,
        number=printed_number("credit_note", document.number),
        tax_lines=tuple(view_of(tax, TaxLine) for tax in taxes),
    )
