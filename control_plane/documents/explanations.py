"""Explains invoices down to the requests of each line. ``billing.documents`` reads; this module cuts pages, whose
cursors are positions of lines and of requests.
"""

import re
from datetime import timedelta
from typing import Final

from sqlmodel import Session

from billing.documents import invoice_lines
from billing.documents.explain import LineReader
from billing.documents.line_records import RequestPosition
from billing.invoices import queries
from billing.invoices.views import InvoiceLineView, InvoiceView
from billing.prices import price_book
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES
from control_plane.documents.schemas import ExplainedLine, ExplainedRequests, InvoiceExplanation, PriceOfLine
from control_plane.paging import decode_cursor, encode_cursor
from core.errors import InvalidRequest, NotFound, Unprocessable
from core.periods import EPOCH
from core.struct_types import view_of

_MICROSECOND: Final = timedelta(microseconds=1)
_REQUEST: Final = re.compile(r"(\d{1,17})\.([A-Za-z0-9_]{1,64})(\.rest)?")
_POSITION_MAX: Final = 1_000_000_000


def explain_invoice(
    session: Session, invoice: InvoiceView, *, path: str, cursor: str | None, limit: int
) -> InvoiceExplanation:
    """A page of an invoice's lines with their prices and where their requests are, below ``path``."""
    page = invoice_lines.read_lines(session, invoice.id, after=decode_position(cursor), limit=limit)
    version_ids = {line.price_version_id for line in page.lines if line.price_version_id is not None}
    prices = price_book.versions_by_id(session, version_ids)
    return InvoiceExplanation(
        invoice=invoice,
        data=[_explained(line, prices.get(line.price_version_id or ""), path) for line in page.lines],
        next_cursor=encode_position(page.following),
    )


def explain_line(
    session: Session, invoice: InvoiceView, line_id: str, *, cursor: str | None, limit: int
) -> ExplainedRequests:
    """A page of the requests of a line. Raises NotFound, and Unprocessable for a line that is no usage."""
    line = invoice_lines.find_line(session, invoice.id, line_id)
    if line is None:
        raise NotFound("This invoice has no such line.", code="invoice_line_not_found")
    if line.kind not in QUANTITIES or line.price_version_id is None:
        raise Unprocessable(
            f"Line {line.id} is a {line.kind}, which is made of no requests. Its description explains it.",
            code="line_has_no_requests",
        )
    reader = LineReader(session, invoice, line)
    explained, page = reader.explain(), reader.read(_after(cursor), limit=limit)
    return view_of(
        explained,
        ExplainedRequests,
        price=_price(explained.line, explained.price),
        found_quantity=queries.plain(explained.found_quantity),
        data=page.requests,
        next_cursor=None if page.following is None else encode_cursor(_cursor_of(page.following)),
    )


def encode_position(following: int | None) -> str | None:
    """The cursor of the lines after a position."""
    return None if following is None else encode_cursor(str(following))


def decode_position(cursor: str | None) -> int:
    """The position after which a page of lines begins. Raises InvalidRequest."""
    text = decode_cursor(cursor)
    if text is None:
        return 0
    if not text.isdecimal() or not text.isascii() or int(text) > _POSITION_MAX:
        raise _not_a_cursor()
    return int(text)


def _explained(line: InvoiceLineView, version: PriceView | None, path: str) -> ExplainedLine:
    usage = line.kind in QUANTITIES and version is not None
    quantity = f"{line.quantity:f} {line.unit} x {line.unit_price_nanos} nanodollars"
    if line.used_units is not None:
        quantity = f"{line.used_units:f} used: {quantity}"
    if line.list_price_nanos is not None:
        quantity = f"{quantity} (list price {line.list_price_nanos}, {line.batch_discount_nanos} less in all)"
    return ExplainedLine(
        line=line,
        price=None if version is None else _price(line, version),
        arithmetic=f"{quantity} = {line.amount_nanos} nanodollars",
        requests_url=f"{path}/{line.id}" if usage else None,
    )


def _price(line: InvoiceLineView, version: PriceView) -> PriceOfLine:
    tiered = None
    if line.tier is not None and line.kind in QUANTITIES:
        tiered = version.card.tier_of(line.kind, line.base_model or "")
    return view_of(
        version,
        PriceOfLine,
        mode="unit" if tiered is None else tiered.mode,
        unit_price_nanos=line.unit_price_nanos,
        tiers=() if tiered is None else tiered.tiers,
        package_units=None if tiered is None else tiered.package_units,
        package_nanos=None if tiered is None else tiered.package_nanos,
    )


def _cursor_of(position: RequestPosition) -> str:
    microseconds = (position.settled_at - EPOCH) // _MICROSECOND
    return f"{microseconds}.{position.request_id.replace(':', '.')}"


def _after(cursor: str | None) -> RequestPosition | None:
    text = decode_cursor(cursor)
    if text is None:
        return None
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise _not_a_cursor()
    try:
        settled_at = EPOCH + int(match[1]) * _MICROSECOND
    except OverflowError as error:
        raise _not_a_cursor() from error
    return RequestPosition(settled_at, match[2] + (":rest" if match[3] else ""))


def _not_a_cursor() -> InvalidRequest:
    return InvalidRequest(
        "cursor: this is not the next_cursor of this list. Leave it out to start at the first page.",
        code="invalid_cursor",
        param="cursor",
    )
