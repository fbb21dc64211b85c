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


def distribute_cents(amounts_nanos: Sequence[int]) -> list[int]:
    """Whole cents for each amount that together are the rounded sum, by the method of largest remainders: each amount
    is rounded down, and the missing cents go to the largest remainders. Of equal remainders, the first one is taken.
    """
    floors = [amount // NANOS_PER_CENT for amount in amounts_nanos]
    missing = round_to_cents(sum(amounts_nanos)) - sum(floors)
    assert 0 <= missing <= len(floors), "remainders are below one cent"
    by_remainder = sorted(range(len(floors)), key=lambda index: (-(amounts_nanos[index] % NANOS_PER_CENT), index))
    for index in by_remainder[:missing]:
        floors[index] += 1
    return floors


def tax_cents(net_cents: int, rate_ppm: int) -> int:
    """Nearest whole cent of a tax of ``rate_ppm`` millionths, halves away from zero."""
    magnitude = (abs(net_cents) * rate_ppm + _PPM // 2) // _PPM
    return magnitude if net_cents >= 0 else -magnitude


def share_cents(total_cents: int, weights: Sequence[int]) -> list[int]:
    """Whole cents that together are ``total_cents``, in proportion to weights, by largest remainders. Weights that
    sum to zero share nothing: all parts are 0.
    """
    whole = sum(weights)
    if whole == 0:
        assert total_cents == 0, "an amount without weights belongs to no part"
        return [0] * len(weights)
    parts = [divmod(total_cents * weight, whole) for weight in weights]
    shares = [share for share, _ in parts]
    # A remainder has the sign of the whole, so compare sizes.
    by_remainder = sorted(range(len(parts)), key=lambda index: (-abs(parts[index][1]), index))
    for index in by_remainder[: total_cents - sum(shares)]:
        shares[index] += 1
    return shares


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
