"""Makes the PDF of an invoice or a credit note from the database, one at a time.

The same document in the same state gives the same bytes. Nothing is stored: a PDF is made when it is asked for.
ReportLab's fonts cannot draw two documents at once: they keep the position of reading. Threads would not draw faster
either, since drawing is Python code.
"""

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, select

from billing.documents.printed import PrintedDocument, printed_credit_note, printed_invoice
from billing.documents.settings import DocumentSettings
from billing.invoices.credit_note_queries import find_note
from billing.invoices.models import Document
from billing.invoices.queries import read_document
from core.db import unit_of_work
from core.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from billing.documents.typefaces import Typefaces

_WAIT_S: Final = 10


class PdfFile(NamedTuple):
    """A document's number and its bytes."""

    number: str
    content: bytes


class PdfMaker:
    """The fonts of one process. Raises Unprocessable for a configured font that cannot be used.

    ReportLab and its fonts are loaded for the first PDF, except where fonts are configured, which are checked at once.
    """

    def __init__(self, settings: DocumentSettings) -> None:
        self._lines_max = settings.documents_pdf_lines_max
        self._fonts = settings.documents_fonts
        self._typefaces = self._load() if self._fonts else None
        self._drawing = Lock()

    def invoice(self, engine: sa.Engine, invoice_id: str, *, tenant_id: str | None) -> PdfFile:
        """An invoice; ``tenant_id`` None is an admin. Raises NotFound, and Unavailable after a long wait for others."""
        with unit_of_work(engine) as session:
            document = read_document(session, invoice_id, tenant_id=tenant_id)
        return self._make(printed_invoice(document, lines_max=self._lines_max))

    def credit_note(self, engine: sa.Engine, note_id: str, *, tenant_id: str | None) -> PdfFile:
        """A credit note; as ``invoice``."""
        with unit_of_work(engine) as session:
            printed = _printed_note(session, note_id, tenant_id)
        return self._make(printed)

    def _make(self, printed: PrintedDocument) -> PdfFile:
        if not self._drawing.acquire(timeout=_WAIT_S):
            raise Unavailable("Too many PDF documents are being made. Try again in a few seconds.", retry_after_s=5)
        try:
            self._typefaces = self._typefaces or self._load()
            return PdfFile(printed.number, _render(printed, self._typefaces))
        finally:
            self._drawing.release()

    def _load(self) -> "Typefaces":
        from billing.documents.typefaces import Typefaces

        return Typefaces(self._fonts)


def _render(printed: PrintedDocument, typefaces: "Typefaces") -> bytes:
    from billing.documents.pdf import render

    return render(printed, typefaces)


def _printed_note(session: Session, note_id: str, tenant_id: str | None) -> PrintedDocument:
    wanted = select(Document).where(Document.document_id == note_id, Document.kind == "credit_note")
    sealed = session.exec(wanted).first()
    note = find_note(session, note_id)
    if sealed is None or note is None or tenant_id not in (None, sealed.tenant_id):
        raise NotFound("Credit note not found.", code="credit_note_not_found")
    return printed_credit_note(note, read_document(session, note.invoice_id), sealed.sha256)
