"""Lines of CSV files that people open in a spreadsheet: RFC 4180, and no cell that a spreadsheet runs as a formula.

Numbers that we compute are written as they are. Text that somebody chose goes through ``text_cell``.
"""

import csv
import io
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from core.money import NANOS_PER_DOLLAR

Cell = str | int | Decimal | None

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""OWASP, CSV Injection; the wide forms are read as the narrow ones in some locales."""


def text_cell(text: str) -> str:
    """The text, with a quote before it if a spreadsheet would run it (OWASP, CSV Injection). NUL becomes a space."""
    text = text.replace("\0", " ")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text


def csv_line(cells: Iterable[Cell]) -> str:
    """One line. Text is made safe; numbers keep their sign; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow([_written(cell) for cell in cells])
    return out.getvalue()


def _written(cell: Cell) -> str | int | None:
    match cell:
        case Decimal():
            return f"{cell:f}"
        case str():
            return text_cell(cell)
        case _:
            return cell


def dollars(amount_nanos: int) -> Decimal:
    """Nanodollars as dollars with nine decimals, exact."""
    return Decimal(amount_nanos).scaleb(-9)


def dollar_text(amount_nanos: int) -> str:
    """The same as text, such as ``-0.000000150``."""
    whole, nanos = divmod(abs(amount_nanos), NANOS_PER_DOLLAR)
    return f"{'-' if amount_nanos < 0 else ''}{whole}.{nanos:09d}"
