"""Money is an integer number of nanodollars (1 USD = 1,000,000,000). This is the only place that rounds it to cents.

One nanodollar per token is a tenth of a cent per million tokens, so every token price the field uses is an integer and
rating is exact. No float touches money.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

NANOS_PER_CENT: Final = 10_000_000
NANOS_PER_DOLLAR: Final = 1_000_000_000
_PPM: Final = 1_000_000
_PERMILLE: Final = 1_000
USD_PATTERN: Final = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"
"""Dollars as people write them: no exponent, no sign of the currency, no spaces."""


def round_to_cents(amount_nanos: int) -> int:
    """Nearest whole cent, halves away from zero: what an invoice charges for its exact total."""
    magnitude = (abs(amount_nanos) + NANOS_PER_CENT // 2) // NANOS_PER_CENT
    return magnitude if amount_nanos >= 0 else -magnitude


def apportion(numerators: Sequence[int], denominator: int, total: int) -> list[int]:
    """Whole numbers for fractions of one denominator that together are ``total``, by the method of largest remainders:
    each fraction is rounded down, and what is missing goes to the largest remainders. Of equal ones, the first is
    taken.
    """
    shares = [numerator // denominator for numerator in numerators]
    missing = total - sum(shares)
    assert 0 <= missing <= len(shares), "remainders are below one"
    for index in sorted(range(len(shares)), key=lambda index: -(numerators[index] % denominator))[:missing]:
        shares[index] += 1
    return shares


def distribute(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares of a total in proportion to weights (``apportion``). Weights that sum to zero share nothing: all
    parts are 0.
    """
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    sign = 1 if whole > 0 else -1
    return apportion([sign * total * weight for weight in weights], abs(whole), total)


def distribute_cents(amounts_nanos: Sequence[int]) -> list[int]:
    """Whole cents for each amount, within one cent of it, that together are the rounded sum (``apportion``)."""
    return apportion(amounts_nanos, NANOS_PER_CENT, round_to_cents(sum(amounts_nanos)))


def tax_cents(net_cents: int, rate_ppm: int) -> int:
    """Nearest whole cent of a tax of ``rate_ppm`` millionths, halves away from zero."""
    magnitude = (abs(net_cents) * rate_ppm + _PPM // 2) // _PPM
    return magnitude if net_cents >= 0 else -magnitude


def cents_to_nanos(amount_cents: int) -> int:
    """Exact: the nanodollars of a whole number of cents."""
    return amount_cents * NANOS_PER_CENT


def at_factor(price_nanos: int, factor_permille: int) -> int:
    """A price times a factor in permille, cut below one nanodollar. This is the only rounding of a reduced price: what
    costs so much a unit is multiplied exactly.
    """
    return price_nanos * factor_permille // _PERMILLE


def format_usd(amount_nanos: int) -> str:
    """``$1.234567890`` without trailing zeros beyond the cents. For people; never parsed."""
    sign = "-" if amount_nanos < 0 else ""
    dollars, nanos = divmod(abs(amount_nanos), NANOS_PER_DOLLAR)
    fraction = f"{nanos:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}${dollars:,}.{fraction}"


def format_plain_usd(amount_nanos: int) -> str:
    """``1234.5``: dollars as a decimal that ``units_of_usd`` reads again, without trailing zeros."""
    return format_usd(amount_nanos).replace("$", "").replace(",", "").removesuffix(".00")


def units_of_usd(text: str, units_per_dollar: int) -> int | None:
    """Exact: the units, such as nanodollars, of a number of dollars. None for what is no plain decimal number, or not a
    whole number of units.
    """
    if not re.fullmatch(USD_PATTERN, text) or text.endswith("\n"):
        return None
    units = Fraction(text) * units_per_dollar
    return units.numerator if units.denominator == 1 else None
