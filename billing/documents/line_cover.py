"""Which usage an invoice line is made of, and how its amount is shared out to requests. Pure: no database.

A line without tiers is made of whole requests: each has the amount of its record. The units of a tiered quantity have
no price of their own: the period's sum has one. So the line counts through the units of the requests in the order in
which they settled, and a request gets what the cost of all units up to and including its own has grown by. In that way
the amounts of the requests are whole nanodollars and sum to the line.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from billing.prices.card import PRICE_OF, PriceCard, TieredPrice
from billing.views import InvoiceLineView

USAGE_KINDS: Final = tuple(PRICE_OF)
"""Kinds of lines that are made of requests."""

_MS: Final = 1_000


class LineCover(NamedTuple):
    """The units of a line among those of its price version: ``first`` to ``last``, exclusive. ``tiered`` is the price
    that shares out the amount; None where each record has its amount.
    """

    first: int
    last: int
    tiered: TieredPrice | None = None
    unit_price_nanos: int = 0

    @property
    def units(self) -> int:
        """The units of the line."""
        return self.last - self.first

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """The units of the line among those from ``begin`` to ``end``, and their amount."""
        before = min(max(begin - self.first, 0), self.units)
        after = min(max(end - self.first, 0), self.units)
        return after - before, self._cost(after) - self._cost(before)

    def _cost(self, units: int) -> int:
        assert self.tiered is not None, "records have their own amounts"
        scale = _scale(self.tiered.quantity)
        if self.tiered.mode == "package":
            package_units, package_nanos = self.tiered.package
            return -(-units // (package_units * scale)) * package_nanos
        return units * self.unit_price_nanos // scale


def cover_of(line: InvoiceLineView, tier_lines: Sequence[InvoiceLineView], card: PriceCard) -> LineCover:
    """What a line of usage covers. ``tier_lines`` are all lines of the same tiered quantity, in order."""
    if line.tier is None:
        return LineCover(0, units_of(line))
    first = 0
    for each in tier_lines:
        if each.id == line.id:
            break
        if same_price(each, line):
            first += units_of(each)
    tiered = card.tier_of(line.kind, line.base_model or "")
    assert tiered is not None, "a line with a tier has a tiered price"
    return LineCover(first, first + units_of(line), tiered, line.unit_price_nanos)


def same_price(one: InvoiceLineView, other: InvoiceLineView) -> bool:
    """Whether two lines of a tiered quantity count the same units: of one price version, late or not."""
    return one.price_version_id == other.price_version_id and (one.late_for is None) == (other.late_for is None)


def units_of(line: InvoiceLineView) -> int:
    """Tokens or page-milliseconds of a line."""
    used = line.quantity if line.used_units is None else line.used_units
    units = used.scaleb(3) if line.kind == "kv_page_seconds" else used
    assert units == int(units), "units are whole"
    return int(units)


def models_with_own_tiers(line: InvoiceLineView, card: PriceCard) -> list[str]:
    """The models that a tier of all models does not count, because they have one of their own."""
    return sorted(
        {tier.base_model for tier in card.tiers if tier.quantity == line.kind and tier.base_model is not None}
    )


def _scale(kind: str) -> int:
    return _MS if kind == "kv_page_seconds" else 1
