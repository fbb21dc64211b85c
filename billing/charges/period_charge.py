"""What a period's usage costs, as a pure function of its sums: the same usage in any order gives the same lines.

Included units cost nothing and have lines of their own. Of the rest, a quantity without tiers costs what its records
cost together, cut below one nanodollar for KV cache of which a part is included.
A quantity with tiers is added up over all keys and adapters of the period, in the order of price versions, late usage
last; each version's tiers apply to the part that was used under it, counted from where the part before ended. Flex
usage comes after the other usage of its version and costs the batch factor of the prices that it reaches.

Where a period is cut into several invoices, each counts on from the units that the earlier ones have billed: tiers and
begun packages go on, and a volume price that changes is charged for the earlier units, too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from billing.charges.included import Taken
from billing.charges.lines import DraftInvoiceLine, LineUnit, UsageTotal, amount_line, in_units
from billing.charges.state import TierUse
from billing.prices.card import FULL_PERMILLE, PRICE_OF, TieredPrice, TieredQuantity
from billing.prices.price_book import PriceView
from core.money import at_factor

_MS: Final = 1_000


class _Part(NamedTuple):
    """Usage of one tiered quantity under one price version. ``quantity`` counts tokens, or page-milliseconds."""

    version: PriceView
    price: TieredPrice
    total: UsageTotal
    quantity: int


_Key = tuple[TieredQuantity, str]
"""A quantity and the base model of its tiered price, "" for all models."""


class Charged(NamedTuple):
    """The lines of the usage of an invoice, without cents, those of tiers after the others; and what all invoices of
    the period have billed together with it.
    """

    lines: list[DraftInvoiceLine]
    tiers: tuple[TierUse, ...]


def charge(
    totals: Sequence[UsageTotal],
    versions: Mapping[str, PriceView],
    included: Taken | None = None,
    billed: Sequence[TierUse] = (),
) -> Charged:
    """Charge for usage. ``included`` are the units that cost nothing, ``billed`` those that earlier invoices of the
    period had.
    """
    lines, tiered = _divide(totals, versions, included)
    units = Counter({msgspec.structs.replace(use, units=0): use.units for use in billed})
    for key in sorted(tiered):
        before = [use for use in billed if (use.quantity, use.base_model or "") == key]
        lines += _tier_lines(sorted(tiered[key], key=_order), before, versions)
        for part in tiered[key]:
            units[_use_of(part)] += part.quantity
    tiers = (msgspec.structs.replace(use, units=count) for use, count in units.items())
    return Charged(lines, tuple(sorted(tiers, key=_use_order)))


def _divide(
    totals: Sequence[UsageTotal], versions: Mapping[str, PriceView], included: Taken | None
) -> tuple[list[DraftInvoiceLine], dict[_Key, list[_Part]]]:
    """The lines of what has no tiers, and the parts of what has some."""
    lines: list[DraftInvoiceLine] = []
    tiered: defaultdict[_Key, list[_Part]] = defaultdict(list)
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
    return lines, tiered


def _use_of(part: _Part) -> TierUse:
    return TierUse(
        quantity=part.price.quantity,
        base_model=part.price.base_model,
        price_version_id=part.version.id,
        service_tier=part.total.service_tier,
        late=part.total.late_for is not None,
        units=0,
    )


def _use_order(use: TierUse) -> tuple[str, ...]:
    return use.quantity, use.base_model or "", use.price_version_id, repr(use)


def _order(part: _Part) -> tuple[bool, str, str, str]:
    total, version = part.total, part.version
    return total.late_for is not None, version.effective_from.isoformat(), version.id, total.service_tier


def _tier_lines(
    parts: Sequence[_Part], billed: Sequence[TierUse], versions: Mapping[str, PriceView]
) -> Iterator[DraftInvoiceLine]:
    position = sum(use.units for use in billed)
    whole = position + sum(part.quantity for part in parts)
    for use in billed:
        yield from _repriced(use, versions.get(use.price_version_id), position, whole)
    for _, same in groupby(parts, key=_order):
        group = list(same)
        quantity = sum(part.quantity for part in group)
        price = group[0].price
        if price.mode == "package":
            before = sum(use.units for use in billed if msgspec.structs.replace(use, units=0) == _use_of(group[0]))
            yield from _package_lines(group, quantity, before)
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


def _repriced(use: TierUse, version: PriceView | None, before: int, whole: int) -> Iterator[DraftInvoiceLine]:
    """The line for units that were billed at the volume price of ``before`` units, and cost that of ``whole``."""
    price = None if version is None else version.card.tier_of(use.quantity, use.base_model or "")
    if version is None or price is None or price.base_model != use.base_model or price.mode != "volume":
        return
    factor = version.card.factor_permille(use.service_tier)
    was, now = (
        use.units * at_factor(_tier_at(price, units)[1], factor) // _scale(use.quantity) for units in (before, whole)
    )
    if was != now:
        description = f"Volume price of {use.quantity.replace('_', ' ')} on earlier invoices of the period"
        yield amount_line("proration", now - was, description=description, price_version_id=version.id)


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


def _package_lines(group: Sequence[_Part], quantity: int, before: int) -> Iterator[DraftInvoiceLine]:
    """The units that fit into a package that earlier invoices of the period have billed, and the packages begun now."""
    price = group[0].price
    units, list_price_nanos = price.package
    size = units * _scale(price.quantity)
    paid = min(quantity, -before % size)
    if paid:
        line = _line(group[0], 1, paid, 0)
        yield msgspec.structs.replace(line, description="in a package of an earlier invoice")
    if paid == quantity:
        return
    nanos = at_factor(list_price_nanos, group[0].total.factor_permille)
    packages = -(-(quantity - paid) // size)
    yield _draft(
        group[0],
        tier=1,
        unit="package",
        quantity=Decimal(packages),
        unit_price_nanos=nanos,
        list_price_nanos=list_price_nanos,
        amount_nanos=packages * nanos,
        used_units=in_units(price.quantity, quantity - paid),
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
