"""Own cost per million tokens, and what the same tokens would cost elsewhere. Pure; amounts are whole nanodollars.

A price that is missing, old or in another currency is shown as such and never as 0.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Annotated, Final, Literal

import msgspec

from core import fields

MEGATOKENS: Final = 1_000_000
STALE_AFTER: Final = timedelta(days=90)
SAVING_GOAL_PPM: Final = 400_000
PPM: Final = 1_000_000
CURRENCY: Final = "usd"

PriceStatus = Literal["current", "stale", "missing", "other_currency"]


class DatedOutsidePrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider charged for a million tokens on a day, in billionths of its currency, and where that is said."""

    base_model: Annotated[str, fields.BASE_MODEL]
    provider: Annotated[str, fields.PROVIDER]
    as_of: Annotated[date, fields.AS_OF]
    currency: Annotated[str, fields.CURRENCY]
    input_nanos_per_mtok: Annotated[int, fields.INPUT_NANOS_PER_MTOK]
    output_nanos_per_mtok: Annotated[int, fields.OUTPUT_NANOS_PER_MTOK]
    source: Annotated[str, fields.PRICE_SOURCE]


class ChargedOutside(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider charged for one of its models in a period, and the tokens of its prompts and answers."""

    base_model: str
    nanos: int
    tokens: int


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """Own cost beside an outside price. Without a usable price, ``outside_nanos`` and ``saving_ppm`` are None and
    ``status`` says why. ``saving_ppm`` is negative when the own cost is higher.
    """

    status: PriceStatus
    provider: str | None = None
    as_of: date | None = None
    outside_nanos: int | None = None
    own_nanos: int = 0
    saving_ppm: int | None = None

    @property
    def reaches_goal(self) -> bool | None:
        """Whether at least 40 % is saved; None without a usable price."""
        return None if self.saving_ppm is None else self.saving_ppm >= SAVING_GOAL_PPM


def break_even(*, total_nanos: int, tokens: int, busy_ms: int, paid_ms: int) -> Mapping[str, int | None]:
    """Own cost per million tokens, to the nearest nanodollar. ``observed``: over all paid time, idle included.
    ``full_use``: as if the replicas were busy all the time, at the speed that they had while busy. None without tokens
    or without such time.
    """
    return {
        "observed": _nearest(total_nanos * MEGATOKENS, tokens if paid_ms > 0 else 0),
        "full_use": _nearest(total_nanos * MEGATOKENS * busy_ms, tokens * paid_ms if busy_ms > 0 else 0),
    }


def _nearest(dividend: int, divisor: int) -> int | None:
    return None if divisor <= 0 else (dividend + divisor // 2) // divisor


def saving(
    prices: Iterable[DatedOutsidePrice],
    *,
    model: str,
    on: date,
    input_tokens: int,
    output_tokens: int,
    own_nanos: int,
    charged: ChargedOutside | None = None,
) -> Saving:
    """Compare with what a provider ``charged`` on average for a token of a similar model, prompt or answer. Otherwise
    with the newest price of the model in dollars that is not after ``on``. Of two prices of one day, the provider first
    in the alphabet counts.
    """
    if charged is not None and charged.tokens > 0:
        outside = _nearest((input_tokens + output_tokens) * charged.nanos, charged.tokens) or 0
        return _current(charged.base_model, on, outside, own_nanos)
    known = [price for price in prices if price.base_model == model and price.as_of <= on]
    ours = [price for price in known if price.currency.lower() == CURRENCY]
    if not ours:
        status: PriceStatus = "other_currency" if known else "missing"
        return Saving(status=status, own_nanos=own_nanos)
    newest = min(ours, key=lambda price: (-price.as_of.toordinal(), price.provider))
    if on - newest.as_of > STALE_AFTER:
        return Saving(status="stale", provider=newest.provider, as_of=newest.as_of, own_nanos=own_nanos)
    outside = (
        input_tokens * newest.input_nanos_per_mtok + output_tokens * newest.output_nanos_per_mtok + MEGATOKENS // 2
    ) // MEGATOKENS
    return _current(newest.provider, newest.as_of, outside, own_nanos)


def _current(provider: str, as_of: date, outside: int, own_nanos: int) -> Saving:
    return Saving(
        status="current",
        provider=provider,
        as_of=as_of,
        outside_nanos=outside,
        own_nanos=own_nanos,
        saving_ppm=None if not outside else (outside - own_nanos) * PPM // outside,
    )
