"""Reads credit notes."""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.invoices.models import CreditNote, CreditNoteTaxLine, Document
from billing.invoices.numbering import printed_number
from billing.invoices.views import CreditNoteView
from billing.settings import INVOICES_PAGE_MAX
from billing.tax.calculation import TaxLine
from core.db import newest_first, total
from core.struct_types import view_of


def notes_of(session: Session, invoice_id: str) -> list[CreditNoteView]:
    """The credit notes of an invoice, oldest first."""
    return _views(session, _notes().where(CreditNote.invoice_id == invoice_id).order_by(col(Document.number)))


def find_note(session: Session, note_id: str) -> CreditNoteView | None:
    """A credit note, if it exists."""
    return next(iter(_views(session, _notes().where(CreditNote.id == note_id))), None)


class Credited(NamedTuple):
    """What notes credit in all, and what of it is paid back."""

    net_cents: int
    tax_cents: int
    refund_cents: int


def credited(session: Session, invoice_id: str, line_id: str | None = None) -> Credited:
    """What all notes of an invoice credit, or those of one of its lines."""
    sums = (total(each) for each in (CreditNote.net_cents, CreditNote.tax_cents, CreditNote.refund_cents))
    of_line = sa.true() if line_id is None else col(CreditNote.line_id) == line_id
    return Credited(*session.execute(sa.select(*sums).where(col(CreditNote.invoice_id) == invoice_id, of_line)).one())


def list_notes(
    session: Session, *, tenant_id: str | None, after: str | None = None, limit: int = 50
) -> list[CreditNoteView]:
    """Credit notes, newest first. ``tenant_id`` None means every tenant, for admins only."""
    assert 1 <= limit <= INVOICES_PAGE_MAX, f"a page holds 1 to {INVOICES_PAGE_MAX} credit notes"
    statement = newest_first(_notes(), col(CreditNote.id), after=after, limit=limit)
    if tenant_id is not None:
        statement = statement.where(CreditNote.tenant_id == tenant_id)
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
