"""What a period's usage costs, as a pure function of its sums: the same usage in any order gives the same lines.

Included units cost nothing and have lines of their own. Of the rest, a quantity without tiers costs what its records
cost together, cut below one nanodollar for KV cache of which a part is included.
A quantity with tiers is added up over all keys and adapters of the period, in the order of price versions, late usage
last; each version's tiers apply to the part that was used under it, counted from where the part before ended. Flex
usage comes after the other usage of its version and costs the batch factor of the prices that it reaches.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Final, NamedTuple

from billing.charges.included import Taken
from billing.charges.lines import DraftInvoiceLine, UsageTotal, in_units
from billing.prices.card import FULL_PERMILLE, PRICE_OF, TieredPrice, TieredQuantity
from billing.views import LineUnit, PriceView
from core.money import at_factor

_MS: Final = 1_000


class _Part(NamedTuple):
    """Usage of one tiered quantity under one price version. ``quantity`` counts tokens, or page-milliseconds."""

    version: PriceView
    price: TieredPrice
    total: UsageTotal
    quantity: int


def charge(
    totals: Sequence[UsageTotal], versions: Mapping[str, PriceView], included: Taken | None = None
) -> list[DraftInvoiceLine]:
    """The lines of a period, without cents. Lines of tiers come after the others. ``included`` are the units that cost
    nothing.
    """
    lines: list[DraftInvoiceLine] = []
    tiered: defaultdict[tuple[TieredQuantity, str], list[_Part]] = defaultdict(list)
    for total in totals:
        version = versions[total.price_version_id]
        for quantity in PRICE_OF:
            used = total.figures(quantity).quantity
            if used == 0:
                continue
            price = version.card.tier_of(quantity, total.base_model)
            free = included.get((total, quantity), 0) if included else 0
            if free:
                lines.append(total.line_of_part(quantity, free, unit_price_nanos=0))
            if free == used:
                continue
            if price is not None:
                tiered[quantity, price.base_model or ""].append(_Part(version, price, total, used - free))
            elif free:
                lines.append(total.line_of_part(quantity, used - free))
            else:
                lines.append(total.line(quantity))
    for key in sorted(tiered):
        lines += _tier_lines(sorted(tiered[key], key=_order))
    return lines


def _order(part: _Part) -> tuple[bool, str, str, str]:
    total, version = part.total, part.version
    return total.late_for is not None, version.effective_from.isoformat(), version.id, total.service_tier


def _tier_lines(parts: Sequence[_Part]) -> Iterator[DraftInvoiceLine]:
    whole = sum(part.quantity for part in parts)
    position = 0
    for _, same in groupby(parts, key=_order):
        group = list(same)
        quantity = sum(part.quantity for part in group)
        price = group[0].price
        if price.mode == "package":
            yield _package_line(group, quantity)
        elif price.mode == "volume":
            tier, unit_price_nanos = _tier_at(price, whole)
            yield _line(group[0], tier, quantity, unit_price_nanos)
        else:
            for tier, share, unit_price_nanos in _graduated(price, position, quantity):
                yield _line(group[0], tier, share, unit_price_nanos)
        position += quantity


def _graduated(price: TieredPrice, position: int, quantity: int) -> Iterator[tuple[int, int, int]]:
    """The tier, the quantity in it and its unit price, of the units after ``position``."""
    end = position + quantity
    for number, tier in enumerate(price.tiers, start=1):
        bound = end if tier.up_to is None else min(end, tier.up_to * _scale(price.quantity))
        if bound > position:
            yield number, bound - position, tier.unit_price_nanos
            position = bound


def _tier_at(price: TieredPrice, whole: int) -> tuple[int, int]:
    for number, tier in enumerate(price.tiers, start=1):
        if tier.up_to is None or whole <= tier.up_to * _scale(price.quantity):
            return number, tier.unit_price_nanos
    raise AssertionError("the last tier has no end")


def _scale(quantity: TieredQuantity) -> int:
    return _MS if quantity == "kv_page_seconds" else 1


def _line(part: _Part, tier: int, quantity: int, list_price_nanos: int) -> DraftInvoiceLine:
    unit_price_nanos = at_factor(list_price_nanos, part.total.factor_permille)
    return _draft(
        part,
        tier=tier,
        unit="page_second" if part.price.quantity == "kv_page_seconds" else "token",
        quantity=in_units(part.price.quantity, quantity),
        unit_price_nanos=unit_price_nanos,
        list_price_nanos=list_price_nanos,
        amount_nanos=quantity * unit_price_nanos // _scale(part.price.quantity),
    )


def _package_line(group: Sequence[_Part], quantity: int) -> DraftInvoiceLine:
    price = group[0].price
    units, list_price_nanos = price.package
    nanos = at_factor(list_price_nanos, group[0].total.factor_permille)
    packages = -(-quantity // (units * _scale(price.quantity)))
    return _draft(
        group[0],
        tier=1,
        unit="package",
        quantity=Decimal(packages),
        unit_price_nanos=nanos,
        list_price_nanos=list_price_nanos,
        amount_nanos=packages * nanos,
        used_units=in_units(price.quantity, quantity),
    )


def _draft(
    part: _Part,
    *,
    tier: int,
    unit: LineUnit,
    quantity: Decimal,
    unit_price_nanos: int,
    list_price_nanos: int,
    amount_nanos: int,
    used_units: Decimal | None = None,
) -> DraftInvoiceLine:
    return DraftInvoiceLine(
        kind=part.price.quantity,
        base_model=part.price.base_model,
        rank_class=None,
        adapter_id=None,
        adapter_name=None,
        price_version_id=part.version.id,
        late_for=part.total.late_for,
        unit=unit,
        quantity=quantity,
        unit_price_nanos=unit_price_nanos,
        amount_nanos=amount_nanos,
        request_count=None,
        tier=tier,
        used_units=used_units,
        service_tier=part.total.service_tier if part.total.service_tier != "default" else None,
        list_price_nanos=list_price_nanos if part.total.factor_permille < FULL_PERMILLE else None,
    )
