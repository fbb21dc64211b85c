"""Routes over one invoice: whole, its lines, explanation and files, for a tenant's own and for admins, whose routes are
the same. An admin's key has no tenant, and reads those of all tenants.
"""

from typing import Annotated, Any, Final

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from sqlalchemy import Engine

from billing.documents import invoice_lines
from billing.documents.invoice_lines import invoice_csv
from billing.documents.pdf_maker import PdfFile, PdfMaker
from billing.invoices.queries import read_document, read_invoice
from billing.invoices.views import InvoiceDocument, InvoiceLineView
from control_plane.auth.authenticate import Principal
from control_plane.documents.explanations import decode_position, encode_position, explain_invoice, explain_line
from control_plane.documents.schemas import ExplainedRequests, InvoiceExplanation
from control_plane.paging import Page, PageCursor
from core.db import unit_of_work

PDF: Final = "application/pdf"

LineLimit = Annotated[int, QueryParameter(ge=1, le=1000, description="Largest number of items to return.")]


class OwnInvoiceDocuments(Controller):
    """The documents of the calling tenant's invoices."""

    path = "/invoices/{invoice_id:str}"
    tags = ("invoices",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_invoice(
        self, invoice_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> InvoiceDocument:
        """Get one invoice with its lines, taxes, payments and credit notes."""
        with unit_of_work(engine) as session:
            return read_document(session, invoice_id, tenant_id=principal.tenant_id)

    @get("/lines", sync_to_thread=True)
    def list_invoice_lines(
        self,
        invoice_id: FromPath[str],
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: LineLimit = 100,
        cursor: PageCursor = None,
    ) -> Page[InvoiceLineView]:
        """List an invoice's lines in print order."""
        with unit_of_work(reports) as session:
            invoice = read_invoice(session, invoice_id, tenant_id=principal.tenant_id)
            page = invoice_lines.read_lines(session, invoice.id, after=decode_position(cursor), limit=limit)
        return Page(data=page.lines, next_cursor=encode_position(page.following))

    @get("/explain", sync_to_thread=True)
    def explain_invoice(
        self,
        request: Request[Any, Any, Any],
        invoice_id: FromPath[str],
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: LineLimit = 100,
        cursor: PageCursor = None,
    ) -> InvoiceExplanation:
        """Explain an invoice: each line's price version, arithmetic, and where its requests are."""
        with unit_of_work(reports) as session:
            invoice = read_invoice(session, invoice_id, tenant_id=principal.tenant_id)
            return explain_invoice(session, invoice, path=request.url.path, cursor=cursor, limit=limit)

    @get("/explain/{line_id:str}", sync_to_thread=True)
    def explain_line(
        self,
        invoice_id: FromPath[str],
        line_id: FromPath[str],
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: LineLimit = 100,
        cursor: PageCursor = None,
    ) -> ExplainedRequests:
        """List the requests that a line is made of, each rated again."""
        with unit_of_work(reports) as session:
            invoice = read_invoice(session, invoice_id, tenant_id=principal.tenant_id)
            return explain_line(session, invoice, line_id, cursor=cursor, limit=limit)

    @get("/pdf", sync_to_thread=True, media_type=PDF)
    def get_invoice_pdf(
        self,
        invoice_id: FromPath[str],
        reports: NamedDependency[Engine],
        pdf_maker: NamedDependency[PdfMaker],
        principal: NamedDependency[Principal],
    ) -> Response[bytes]:
        """Get an invoice as PDF; also at `/invoices/{invoice_id}.pdf`."""
        return _pdf(pdf_maker.invoice(reports, invoice_id, tenant_id=principal.tenant_id))

    @get("/csv", sync_to_thread=True, media_type="text/csv")
    def get_invoice_csv(
        self, invoice_id: FromPath[str], reports: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Stream:
        """Get an invoice's lines as CSV; also at `/invoices/{invoice_id}.csv`."""
        with unit_of_work(reports) as session:
            invoice = read_invoice(session, invoice_id, tenant_id=principal.tenant_id)
        lines = invoice_csv(invoice, invoice_lines.all_lines(reports, invoice.id))
        headers = {"Content-Disposition": f'attachment; filename="{invoice.number}.csv"'}
        return Stream(lines, media_type="text/csv", headers=headers)


class AdminInvoiceDocuments(OwnInvoiceDocuments):
    """The documents of any tenant's invoices."""

    tags = ("admin: billing",)


class OwnCreditNoteDocuments(Controller):
    """The printed credit notes of the calling tenant."""

    path = "/credit-notes/{note_id:str}"
    tags = ("invoices",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get("/pdf", sync_to_thread=True, media_type=PDF)
    def get_credit_note_pdf(
        self,
        note_id: FromPath[str],
        reports: NamedDependency[Engine],
        pdf_maker: NamedDependency[PdfMaker],
        principal: NamedDependency[Principal],
    ) -> Response[bytes]:
        """Get a credit note as PDF; also at `/credit-notes/{note_id}.pdf`."""
        return _pdf(pdf_maker.credit_note(reports, note_id, tenant_id=principal.tenant_id))


class AdminCreditNoteDocuments(OwnCreditNoteDocuments):
    """Any tenant's printed credit notes."""

    tags = ("admin: billing",)


def _pdf(file: PdfFile) -> Response[bytes]:
    headers = {"Content-Disposition": f'inline; filename="{file.number}.pdf"'}
    return Response(file.content, media_type=PDF, headers=headers)
