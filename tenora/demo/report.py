"""Prints the demo's results as tables, and writes them as one JSON file."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from core.money import cents_to_nanos, format_usd


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table; columns after the first are right-aligned."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 3, 0, 0))
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def show_usage(console: Console, tenant: str, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Print one tenant's usage by adapter."""
    console.print(
        table(
            f"{tenant}: usage by adapter",
            ["model", "requests", "input tokens", "of them cached", "output tokens", "KV page-seconds"],
            [
                [
                    names[row["adapter_id"]],
                    f"{row['requests']:,}",
                    f"{row['input_tokens']:,}",
                    f"{row['cached_tokens']:,}",
                    f"{row['output_tokens']:,}",
                    f"{row['kv_page_seconds']:,.3f}",
                ]
                for row in rows
            ],
        )
    )


def show_invoice(console: Console, tenant: str, invoice: dict[str, Any], names: dict[str, str]) -> None:
    """Print one invoice with its lines."""
    console.print(
        table(
            f"{tenant}: invoice {invoice['number']}",
            ["line", "quantity", "unit price", "exact", "charged"],
            [
                [
                    f"{line['kind'].replace('_', ' ')}, {names[line['adapter_id'] or '']}",
                    f"{Decimal(line['quantity']):,}",
                    format_usd(line["unit_price_nanos"]),
                    format_usd(line["amount_nanos"]),
                    format_usd(cents_to_nanos(line["amount_cents"])),
                ]
                for line in invoice["lines"]
            ]
            + [
                [
                    "total",
                    "",
                    "",
                    format_usd(invoice["amount_nanos"]),
                    format_usd(cents_to_nanos(invoice["total_cents"])),
                ]
            ],
        )
    )


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=2) + "\n")
    partial.rename(path)
