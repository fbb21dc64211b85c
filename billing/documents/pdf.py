"""Draws printed documents as PDF with ReportLab. The same document gives the same bytes: no time, no random id.

Measures are whole points (1/72 inch). Text of any length is wrapped, also within a word; a number never is.
"""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    KeepTogether,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)

from billing.documents.printed import PrintedDocument, PrintedRow, PrintedSum
from billing.documents.typefaces import BOLD, REGULAR, Typefaces

_WIDTH, _HEIGHT = (int(side) for side in A4)
_MARGIN: Final = 50
_INNER: Final = _WIDTH - 2 * _MARGIN
_FOOTER_Y: Final = 28
_GREY: Final = HexColor("#667085")
_RULE: Final = HexColor("#d0d5dd")
_TEXT: Final = ParagraphStyle("text", fontName=REGULAR, fontSize=8, leading=11, splitLongWords=1)
_NUMBER: Final = ParagraphStyle("number", parent=_TEXT, alignment=TA_RIGHT, splitLongWords=0)
_TITLE: Final = ParagraphStyle("title", parent=_TEXT, fontName=BOLD, fontSize=16, leading=20)
_COLUMNS: Final = (_INNER - 280, 120, 90, 70)
_HALVES: Final = (_INNER // 2, _INNER - _INNER // 2)


class _NumberedPages(Canvas):
    """A canvas that knows on its first page how many follow."""

    def __init__(self, *args: Any, footer: str, **options: Any) -> None:  # ReportLab's own signature
        super().__init__(*args, **options)
        self._pages: list[dict[str, Any]] = []
        self._footer = footer

    def showPage(self) -> None:  # noqa: N802 - ReportLab's own name
        self._pages.append(dict(self.__dict__))
        self._startPage()  # type: ignore[attr-defined]  # not in the stubs

    def save(self) -> None:
        pages = self._pages
        for number, page in enumerate(pages, start=1):
            self.__dict__.update(page)
            self.setFont(REGULAR, 6)
            self.setFillColor(_GREY)
            self.drawString(_MARGIN, _FOOTER_Y, self._footer)
            self.drawRightString(_WIDTH - _MARGIN, _FOOTER_Y, f"{number} of {len(pages)}")
            super().showPage()
        super().save()


def render(document: PrintedDocument, typefaces: Typefaces) -> bytes:
    """The document as a PDF file."""
    out = io.BytesIO()
    template = BaseDocTemplate(
        out,
        pagesize=(_WIDTH, _HEIGHT),
        title=f"{document.title} {document.number}",
        author="",
        subject="",
        creator="Tenora",
        invariant=1,
        lang="en",
    )
    frame = Frame(_MARGIN, _MARGIN, _INNER, _HEIGHT - 2 * _MARGIN, leftPadding=0, rightPadding=0, id="page")

    template.addPageTemplates(PageTemplate(id="page", frames=[frame]))
    template.build(_story(document, typefaces), canvasmaker=partial(_NumberedPages, footer=document.footer))
    return out.getvalue()


def _story(document: PrintedDocument, typefaces: Typefaces) -> list[Flowable]:
    def text(value: str, style: ParagraphStyle = _TEXT, *, bold: bool = False) -> Paragraph:
        return Paragraph(typefaces.markup(value, bold=bold), style)

    def block(label: str, lines: Sequence[str]) -> list[Flowable]:
        return [text(label, bold=True), *(text(line) for line in lines)]

    facts = Table(
        [[text(label, bold=True), text(value)] for label, value in document.facts],
        colWidths=(110, _INNER - 110),
        style=TableStyle([("LEFTPADDING", (0, 0), (-1, -1), 0), ("VALIGN", (0, 0), (-1, -1), "TOP")]),
    )
    parties = Table(
        [[block("From", document.seller) if document.seller else [], block("To", document.buyer)]],
        colWidths=_HALVES,
        style=TableStyle([("LEFTPADDING", (0, 0), (-1, -1), 0), ("VALIGN", (0, 0), (-1, -1), "TOP")]),
    )
    head = [
        text("Description", bold=True),
        *(text(name, _NUMBER, bold=True) for name in ("Quantity", "Price", "Amount")),
    ]
    rows = [head, *(_cells(row, text) for row in document.rows)]
    return [
        text(f"{document.title} {document.number}", _TITLE, bold=True),
        Spacer(0, 10),
        facts,
        Spacer(0, 10),
        parties,
        Spacer(0, 14),
        Table(rows, colWidths=_COLUMNS, repeatRows=1, splitInRow=1, style=_lines_style()),
        Spacer(0, 8),
        Table(
            [_sum(each, text) for each in document.sums],
            colWidths=(_INNER - 110, 110),
            style=TableStyle(
                [
                    ("VALIGN", (0, 0), (-1, -1), "TOP"),
                    ("TOPPADDING", (0, 0), (-1, -1), 1),
                    ("RIGHTPADDING", (-1, 0), (-1, -1), 0),
                    ("NOSPLIT", (0, 0), (-1, -1)),
                ]
            ),
        ),
        *([Spacer(0, 12), KeepTogether(block("Payment", document.terms))] if document.terms else []),
        *(part for note in document.notes for part in (Spacer(0, 8), text(note))),
    ]


def _cells(row: PrintedRow, text: Any) -> list[Paragraph]:
    return [
        text(row.description),
        text(row.quantity, _NUMBER),
        text(row.unit_price, _NUMBER),
        text(row.amount, _NUMBER),
    ]


def _sum(each: PrintedSum, text: Any) -> list[Paragraph]:
    return [text(each.label, _NUMBER, bold=each.total), text(each.amount, _NUMBER, bold=each.total)]


def _lines_style() -> TableStyle:
    return TableStyle(
        [
            ("LEFTPADDING", (0, 0), (0, -1), 0),
            ("RIGHTPADDING", (-1, 0), (-1, -1), 0),
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("TOPPADDING", (0, 0), (-1, -1), 2),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
            ("LINEBELOW", (0, 0), (-1, 0), 1, _RULE),
            ("LINEBELOW", (0, -1), (-1, -1), 1, _RULE),
        ]
    )
