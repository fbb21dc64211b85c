"""Which units of usage an invoice line is made of, and how its amount is shared out to requests. Pure: no database.

Most lines are made of whole requests: each has the amount of its record. A line of a tier, or of a quantity of which a
part is included, is a range of units: units are numbered in settlement order, included units first. A request's amount
is the cost of all units up to its last one, minus the cost of all units before its first. So the amounts of the
requests are whole nanodollars and sum to the line.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from billing.charges.lines import INCLUDED
from billing.invoices.views import InvoiceLineView
from billing.prices.card import PriceCard
from billing.prices.quantities import QUANTITIES, UsageKind


class RunningPrice(NamedTuple):
    """What the first units of a line cost together: ``unit_nanos`` for ``scale`` units, or for each begun package."""

    unit_nanos: int
    scale: int
    package_units: int | None = None

    def cost(self, units: int) -> int:
        """The nanodollars of so many units."""
        if self.package_units is not None:
            return -(-units // (self.package_units * self.scale)) * self.unit_nanos
        return units * self.unit_nanos // self.scale


class LineCover(NamedTuple):
    """The units of a line, ``first`` to ``last`` (exclusive), among all units of its pool. Without ``price`` the line
    is made of whole records with their own amounts.
    """

    first: int
    last: int
    price: RunningPrice | None = None

    @property
    def units(self) -> int:
        """The units of the line."""
        return self.last - self.first

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """The units of the line among those from ``begin`` to ``end``, and their amount."""
        assert self.price is not None, "records have their own amounts"
        before = min(max(begin - self.first, 0), self.units)
        after = min(max(end - self.first, 0), self.units)
        return after - before, self.price.cost(after) - self.price.cost(before)


class PoolOwner(NamedTuple):
    """Whose units are counted together before tiers: "" and 0 stand for no adapter and rank class. ``late_for`` is None
    for usage of the period itself.
    """

    base_model: str
    adapter_id: str
    rank_class: int
    late_for: datetime | None


def cover_of(line: InvoiceLineView, others: Sequence[InvoiceLineView], card: PriceCard) -> LineCover:
    """What a line of usage covers. ``others`` are the invoice's lines of the same quantity, in order, with itself."""
    pool = [each for each in others if same_pool(each, line)]
    if line.tier is None and all(each.description != INCLUDED for each in pool):
        return LineCover(0, units_of(line))
    first = 0
    for each in sorted(pool, key=lambda each: each.description != INCLUDED):
        if each.id == line.id:
            break
        first += units_of(each)
    return LineCover(first, first + units_of(line), _price(line, card))


def same_pool(one: InvoiceLineView, other: InvoiceLineView) -> bool:
    """Whether two lines count the same units: of one price version and service tier, of one period, late or not, and of
    one model and adapter unless they have tiers.
    """
    if one.price_version_id != other.price_version_id or (one.tier is None) != (other.tier is None):
        return False
    if one.service_tier != other.service_tier:
        return False
    if (one.covers_from, one.covers_until) != (other.covers_from, other.covers_until):
        return False
    if one.tier is not None:
        return one.base_model == other.base_model and (one.late_for is None) == (other.late_for is None)
    return owner_of(one) == owner_of(other)


def owner_of(line: InvoiceLineView) -> PoolOwner:
    """Whose units a line without tiers counts."""
    return PoolOwner(line.base_model or "", line.adapter_id or "", line.rank_class or 0, line.late_for)


def included_before(
    line: InvoiceLineView, others: Sequence[InvoiceLineView], card: PriceCard
) -> Iterator[tuple[PoolOwner, int]]:
    """The units that are included and so reach no tier: of each owner whose other units a line of tiers counts."""
    if line.tier is None:
        return
    excluded = models_with_own_tiers(line, card)
    for each in others:
        if (
            each.description == INCLUDED
            and (each.price_version_id, each.service_tier) == (line.price_version_id, line.service_tier)
            and (each.covers_from, each.covers_until) == (line.covers_from, line.covers_until)
            and (each.late_for is None) == (line.late_for is None)
            and (line.base_model in {None, each.base_model} and each.base_model not in excluded)
        ):
            yield owner_of(each), units_of(each)


def models_with_own_tiers(line: InvoiceLineView, card: PriceCard) -> list[str]:
    """The models that a tier of all models does not count, because they have one of their own."""
    if line.tier is None or line.base_model is not None:
        return []
    return sorted(
        {tier.base_model for tier in card.tiers if tier.quantity == line.kind and tier.base_model is not None}
    )


def kind_of(line: InvoiceLineView) -> UsageKind:
    """The kind of a line of usage."""
    return next(kind for kind in QUANTITIES if kind == line.kind)


def units_of(line: InvoiceLineView) -> int:
    """Tokens or page-milliseconds of a line."""
    used = line.quantity if line.used_units is None else line.used_units
    units = used * QUANTITIES[kind_of(line)].scale
    assert units == int(units), "units are whole"
    return int(units)


def _price(line: InvoiceLineView, card: PriceCard) -> RunningPrice:
    kind = kind_of(line)
    if line.unit != "package":
        return RunningPrice(line.unit_price_nanos, QUANTITIES[kind].scale)
    tiered = card.tier_of(kind, line.base_model or "")
    assert tiered is not None, "a line of packages has a tiered price"
    return RunningPrice(line.unit_price_nanos, QUANTITIES[kind].scale, tiered.package[0])
