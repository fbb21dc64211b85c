"""Money is an integer number of nanodollars (1 USD = 1,000,000,000). This is the only place that rounds it to cents.

One nanodollar per token is a tenth of a cent per million tokens, so every token price the field uses is an integer and
rating is exact. No float touches money.
"""

from typing import Final

NANOS_PER_CENT: Final = 10_000_000
NANOS_PER_DOLLAR: Final = 1_000_000_000


def round_to_cents(amount_nanos: int) -> int:
    """Nearest whole cent, halves away from zero: what an invoice line charges for ``amount_nanos``."""
    magnitude = (abs(amount_nanos) + NANOS_PER_CENT // 2) // NANOS_PER_CENT
    return magnitude if amount_nanos >= 0 else -magnitude


def cents_to_nanos(amount_cents: int) -> int:
    """Exact: the nanodollars of a whole number of cents."""
    return amount_cents * NANOS_PER_CENT


def format_usd(amount_nanos: int) -> str:
    """``$1.234567890`` without trailing zeros beyond the cents. For people; never parsed."""
    sign = "-" if amount_nanos < 0 else ""
    dollars, nanos = divmod(abs(amount_nanos), NANOS_PER_DOLLAR)
    fraction = f"{nanos:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}${dollars:,}.{fraction}"
