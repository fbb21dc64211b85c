"""The lines of an invoice as CSV, for spreadsheets. Written in pieces, so that 20,000 lines take little memory."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from billing.documents.csv_lines import Cell, csv_line, dollars
from billing.invoices.views import InvoiceLineView, InvoiceView

_COLUMNS: Final = (
    "invoice", "period_start", "period_end", "line", "line_id", "kind", "base_model", "rank_class", "adapter_id",
    "adapter", "late_for", "price_version_id", "tier", "quantity", "used_units", "unit", "unit_price_usd", "amount_usd",
    "amount_cents", "tax_cents", "requests", "description", "service_tier", "list_price_usd", "batch_discount_usd",
)  # fmt: skip


def invoice_csv(invoice: InvoiceView, lines: Iterable[InvoiceLineView]) -> Iterator[str]:
    """The header, then one line of CSV for each line. Names of adapters are safe to open in a spreadsheet."""
    yield csv_line(_COLUMNS)
    for number, line in enumerate(lines, start=1):
        yield csv_line(_cells(invoice, number, line))


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
