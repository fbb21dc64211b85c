"""Numbers, amounts and times as pages show them. Amounts come as integers and are shown exactly."""

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from core.money import NANOS_PER_CENT, cents_to_nanos, format_plain_usd, round_to_cents

_UNITS: Final = ("B", "KB", "MB", "GB", "TB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def number(value: float | None) -> str:
    """A number with commas; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def usd(nanos: int | None) -> str:
    """Nanodollars in dollars, exact, with two decimals at least."""
    if nanos is None:
        return "–"
    sign, plain = ("-", format_plain_usd(-nanos)) if nanos < 0 else ("", format_plain_usd(nanos))
    whole, _, fraction = plain.partition(".")
    return f"{sign}${int(whole):,}.{fraction.ljust(2, '0')}"


def about_usd(nanos: int) -> str:
    """Nanodollars in dollars to the cent, marked where that is not exact."""
    rounded = cents_to_nanos(round_to_cents(nanos))
    return f"{'' if rounded == nanos else '≈ '}{usd(rounded)}"


def quantity(value: str | int) -> str:
    """An exact decimal number, which JSON has as text, with commas."""
    return f"{Decimal(value):,}"


def cents(value: int | None) -> str:
    """Cents in dollars."""
    return "–" if value is None else usd(value * NANOS_PER_CENT)


def ms(value: float | None) -> str:
    """Milliseconds, from ten seconds on in seconds."""
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def size(value: int | None) -> str:
    """Bytes in the largest unit that keeps a number of one or more."""
    if value is None:
        return "–"
    amount, unit = float(value), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:,.1f} {_UNITS[unit]}"


def ago(at: datetime, now: datetime) -> str:
    """How long ago, or ahead, within a day; else the date."""
    seconds = (now - at).total_seconds()
    words = "in {}" if seconds < 0 else "{} ago"
    span = abs(seconds)
    if span < _MINUTE:
        return words.format(f"{span:.0f} s")
    if span < _HOUR:
        return words.format(f"{span / _MINUTE:.0f} min")
    if span < _DAY:
        return words.format(f"{span / _HOUR:.0f} h")
    return at.strftime("%-d %b %Y")


FILTERS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "number": number,
        "usd": usd,
        "about_usd": about_usd,
        "quantity": quantity,
        "cents": cents,
        "ms": ms,
        "size": size,
    }
)
