"""Reads the lines of an invoice in pages, and writes them as CSV for spreadsheets, in little memory at any length."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.charges.lines import INCLUDED
from billing.invoices.models import InvoiceLine, InvoiceTaxLine
from billing.invoices.queries import line_view
from billing.invoices.views import InvoiceLineView, InvoiceView
from billing.tax.calculation import line_shares
from core.csv_lines import Cell, csv_line, dollars
from core.db import unit_of_work

_READ: Final = 500
_COLUMNS: Final = (
    "invoice", "period_start", "period_end", "line", "line_id", "kind", "base_model", "rank_class", "adapter_id",
    "adapter", "late_for", "price_version_id", "tier", "quantity", "used_units", "unit", "unit_price_usd", "amount_usd",
    "amount_cents", "tax_cents", "requests", "description", "service_tier", "list_price_usd", "batch_discount_usd",
)  # fmt: skip


class LinePage(NamedTuple):
    """Lines in print order, and the position of the last one if there are more."""

    lines: list[InvoiceLineView]
    following: int | None


def read_lines(session: Session, invoice_id: str, *, after: int = 0, limit: int) -> LinePage:
    """The lines after a position."""
    return _page(session, invoice_id, _tax_shares(session, invoice_id), after, limit)


def all_lines(engine: sa.Engine, invoice_id: str) -> Iterator[InvoiceLineView]:
    """Every line. Each page has a transaction of its own, so a slow reader holds no connection."""
    with unit_of_work(engine) as session:
        taxes = _tax_shares(session, invoice_id)
    position: int | None = 0
    while position is not None:
        with unit_of_work(engine) as session:
            page = _page(session, invoice_id, taxes, position, _READ)
        yield from page.lines
        position = page.following


def find_line(session: Session, invoice_id: str, line_id: str) -> InvoiceLineView | None:
    """A line by its id. None when the invoice has no such line."""
    wanted = InvoiceLine.invoice_id == invoice_id, InvoiceLine.id == line_id
    line = session.exec(select(InvoiceLine).where(*wanted)).first()
    if line is None:
        return None
    return line_view(line, _tax_of(_tax_shares(session, invoice_id), line))


def lines_beside(session: Session, invoice_id: str, line: InvoiceLineView) -> list[InvoiceLineView]:
    """The lines of the same kind and price that may count units of the same requests as ``line``, with itself, in
    order: those of its tiers, of included units, and of its model and adapter.
    """
    tiered = col(InvoiceLine.tier).is_not(None)
    same_owner = sa.and_(
        ~tiered,
        col(InvoiceLine.base_model).is_not_distinct_from(line.base_model),
        col(InvoiceLine.adapter_id).is_not_distinct_from(line.adapter_id),
    )
    found = session.exec(
        select(InvoiceLine)
        .where(
            InvoiceLine.invoice_id == invoice_id,
            InvoiceLine.kind == line.kind,
            InvoiceLine.price_version_id == line.price_version_id,
            sa.or_(col(InvoiceLine.description) == INCLUDED, same_owner if line.tier is None else tiered),
        )
        .order_by(col(InvoiceLine.position))
    )
    return [line_view(each, 0) for each in found]


def invoice_csv(invoice: InvoiceView, lines: Iterable[InvoiceLineView]) -> Iterator[str]:
    """The header, then one line of CSV for each line. Names of adapters are safe to open in a spreadsheet."""
    yield csv_line(_COLUMNS)
    for number, line in enumerate(lines, start=1):
        yield csv_line(_cells(invoice, number, line))


def _page(session: Session, invoice_id: str, taxes: Sequence[int], after: int, limit: int) -> LinePage:
    found = session.exec(
        select(InvoiceLine)
        .where(InvoiceLine.invoice_id == invoice_id, col(InvoiceLine.position) > after)
        .order_by(col(InvoiceLine.position))
        .limit(limit + 1)
    ).all()
    shown = found[:limit]
    views = [line_view(line, _tax_of(taxes, line)) for line in shown]
    return LinePage(views, shown[-1].position if len(found) > limit else None)


def _tax_of(taxes: Sequence[int], line: InvoiceLine) -> int:
    return taxes[line.position - 1] if taxes else 0


def _tax_shares(session: Session, invoice_id: str) -> "array[int]":
    """The tax of each line, by position from 1; empty without tax. Shares depend on all lines, so all are counted, in
    8 bytes each.
    """
    taxes = session.exec(select(InvoiceTaxLine.tax_cents).where(InvoiceTaxLine.invoice_id == invoice_id)).all()
    if not any(taxes):
        return array("q")
    cents = session.exec(
        select(InvoiceLine.amount_cents).where(InvoiceLine.invoice_id == invoice_id).order_by(col(InvoiceLine.position))
    )
    return array("q", line_shares(list(taxes), cents.all()))


def _cells(invoice: InvoiceView, number: int, line: InvoiceLineView) -> tuple[Cell, ...]:
    return (
        invoice.number, _instant(invoice.period_start), _instant(invoice.period_end), number, line.id, line.kind,
        line.base_model, line.rank_class, line.adapter_id, line.adapter_name,
        None if line.late_for is None else f"{line.late_for:%Y-%m}", line.price_version_id, line.tier, line.quantity,
        line.used_units, line.unit, dollars(line.unit_price_nanos), dollars(line.amount_nanos), line.amount_cents,
        line.tax_cents, line.request_count, line.description, line.service_tier,
        None if line.list_price_nanos is None else dollars(line.list_price_nanos),
        None if line.list_price_nanos is None else dollars(line.batch_discount_nanos),
    )  # fmt: skip


def _instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"
