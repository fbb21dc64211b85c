"""What a period's usage costs, as a pure function of its sums: the same usage in any order gives the same lines.

Included units come first. They cost nothing and have lines of their own. A pool of included units has, for each price
version in force in the period, the units that the version includes times its share of the period. The units go to the
first usage of the period, in the order of price versions, flex usage last; a pool of the model before one of all
models.

A quantity without tiers costs what its records cost together. If a part of it is included, the other units cost their
number times the price, cut below one nanodollar, which only KV cache can lose. A quantity with tiers is added up over
all keys and adapters of the period, in the order of price versions, late usage last; each version's tiers apply to the
part that was used under it, counted from where the part before ended. Flex usage comes after the other usage of its
version and costs the batch factor of the prices that it reaches.

If several invoices share one period, each starts counting at the units that the earlier ones billed: tiers and begun
packages go on, and a volume price that changes is charged for the earlier units, too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import NamedTuple

import msgspec

from billing.charges.lines import DraftInvoiceLine, UsageTotal, amount_line, part_of
from billing.charges.proration import PricedInterval, TenantTerms, prorated
from billing.charges.state import Pool, TierUse
from billing.prices.card import FULL_PERMILLE, IncludedUsage, TieredPrice
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES, LineUnit, UsageKind
from core.money import at_factor
from core.periods import Period

_Key = tuple[UsageKind, str]
"""A quantity and the base model of its pool or of its tiered price, "" for all models."""

_Part = tuple[UsageTotal, int]
"""A sum of usage, and how much of its tiered quantity is not included."""

Taken = Mapping[tuple[int, UsageKind], int]
"""How many units are included, by the position of a sum and its quantity."""


class Included(NamedTuple):
    """What is included of each sum, and the pools afterwards."""

    taken: Taken
    pools: tuple[Pool, ...]


class Charged(NamedTuple):
    """The lines of the usage of an invoice, without cents, those of tiers after the others; and what all invoices of
    the period have billed together with it.
    """

    lines: list[DraftInvoiceLine]
    tiers: tuple[TierUse, ...]


def take_included(terms: TenantTerms, billed: Period, totals: Sequence[UsageTotal], before: Sequence[Pool]) -> Included:
    """What the pools of the period that holds ``billed`` include of the totals. ``before`` are its pools so far."""
    around = terms.calendars.period_at(billed.start)
    whole = terms.calendars.at(billed.start).period_at(billed.start)
    intervals = list(terms.intervals(around))
    earlier: dict[_Key, Pool] = {(pool.quantity, pool.base_model or ""): pool for pool in before}
    keys = earlier.keys() | {_pool_key(each) for interval in intervals for each in _included(interval.version)}
    if not keys:
        return Included({}, ())
    own = {key: prorated(((interval, _pool_units(interval, key)) for interval in intervals), whole) for key in keys}
    pools = {key: earlier.get(key, Pool(quantity=key[0], base_model=key[1] or None)) for key in keys}
    available = {key: max(0, own[key] - pool.granted + pool.left) for key, pool in pools.items()}
    taken: Counter[tuple[int, UsageKind]] = Counter()
    for position in sorted(range(len(totals)), key=lambda position: _taking_order(totals[position])):
        total = totals[position]
        for kind, used in total.used.items():
            for key in ((kind, total.base_model), (kind, "")):
                units = min(used.counted - taken[position, kind], available.get(key, 0))
                if units > 0:
                    taken[position, kind] += units
                    available[key] -= units
    ends = around.end == billed.end
    at_end = {_pool_key(each): each for each in _included(intervals[-1].version)}
    left = {key: _left(at_end.get(key), units, own[key]) if ends else units for key, units in available.items()}
    after = (msgspec.structs.replace(pools[key], granted=own[key], left=left[key]) for key in sorted(keys))
    return Included(+taken, tuple(after))


def charge(
    totals: Sequence[UsageTotal],
    included: Taken | None = None,
    billed: Sequence[TierUse] = (),
    versions: Mapping[str, PriceView] | None = None,
) -> Charged:
    """Charge for usage. ``included`` are the units that cost nothing, ``billed`` those that earlier invoices of the
    period had, under ``versions``.
    """
    versions = {**(versions or {}), **{total.version.id: total.version for total in totals}}
    lines, tiered = _divide(totals, included or {})
    units = Counter({msgspec.structs.replace(use, units=0): use.units for use in billed})
    for key in sorted(tiered):
        before = [use for use in billed if (use.quantity, use.base_model or "") == key]
        lines += _tier_lines(key, sorted(tiered[key], key=lambda part: _order(part[0])), before, versions)
        for total, count in tiered[key]:
            units[_use_of(key, total)] += count
    tiers = (msgspec.structs.replace(use, units=count) for use, count in units.items())
    return Charged(lines, tuple(sorted(tiers, key=_use_order)))


def _included(version: PriceView | None) -> tuple[IncludedUsage, ...]:
    return () if version is None else version.card.included


def _pool_key(included: IncludedUsage) -> _Key:
    return included.quantity, included.base_model or ""


def _pool_units(interval: PricedInterval, key: _Key) -> int:
    """What a version includes in a whole period."""
    units = sum(each.units for each in _included(interval.version) if _pool_key(each) == key)
    return units * QUANTITIES[key[0]].scale


def _left(included: IncludedUsage | None, units: int, own: int) -> int:
    """What a period leaves to the next one: at most its own units, so that no unit rolls over twice."""
    return min(units, own) if included is not None and included.rollover else 0


def _order(total: UsageTotal) -> tuple[bool, str, str, str]:
    version = total.version
    return total.late_for is not None, version.effective_from.isoformat(), version.id, total.service_tier


def _taking_order(total: UsageTotal) -> tuple[tuple[bool, str, str, str], str, int, str]:
    return _order(total), total.base_model, total.rank_class or 0, total.adapter_id or ""


def _divide(totals: Sequence[UsageTotal], included: Taken) -> tuple[list[DraftInvoiceLine], dict[_Key, list[_Part]]]:
    """The lines of quantities without tiers, and the parts of those with tiers."""
    lines: list[DraftInvoiceLine] = []
    tiered: defaultdict[_Key, list[_Part]] = defaultdict(list)
    for position, total in enumerate(totals):
        listed = total.list_prices
        for kind, used in total.used.items():
            line, free = total.line(kind, listed), included.get((position, kind), 0)
            if free:
                lines.append(part_of(line, kind, free, free=True))
            if free == used.counted:
                continue
            price = total.version.card.tier_of(kind, total.base_model)
            if price is not None:
                tiered[kind, price.base_model or ""].append((total, used.counted - free))
            else:
                lines.append(part_of(line, kind, used.counted - free) if free else line)
    return lines, tiered


def _use_of(key: _Key, total: UsageTotal) -> TierUse:
    return TierUse(
        quantity=key[0],
        base_model=key[1] or None,
        price_version_id=total.version.id,
        service_tier=total.service_tier,
        late=total.late_for is not None,
        units=0,
    )


def _use_order(use: TierUse) -> tuple[str, ...]:
    return use.quantity, use.base_model or "", use.price_version_id, repr(use)


def _tier_lines(
    key: _Key, parts: Sequence[_Part], billed: Sequence[TierUse], versions: Mapping[str, PriceView]
) -> Iterator[DraftInvoiceLine]:
    position = sum(use.units for use in billed)
    whole = position + sum(count for _, count in parts)
    for use in billed:
        yield from _repriced(use, versions.get(use.price_version_id), position, whole)
    for _, same in groupby(parts, key=lambda part: _order(part[0])):
        group = list(same)
        total, count = group[0][0], sum(count for _, count in group)
        price = total.version.card.tier_of(key[0], total.base_model)
        assert price is not None, "a part has a tiered price"
        if price.mode == "package":
            before = sum(use.units for use in billed if msgspec.structs.replace(use, units=0) == _use_of(key, total))
            yield from _package_lines(total, price, count, before)
        elif price.mode == "volume":
            tier, unit_price_nanos = _tier_at(price, whole)
            yield _line(total, price, tier, count, unit_price_nanos)
        else:
            for tier, share, unit_price_nanos in _graduated(price, position, count):
                yield _line(total, price, tier, share, unit_price_nanos)
        position += count


def _graduated(price: TieredPrice, position: int, count: int) -> Iterator[tuple[int, int, int]]:
    """The tier, the count in it and its unit price, of the units after ``position``."""
    end, scale = position + count, QUANTITIES[price.quantity].scale
    for number, tier in enumerate(price.tiers, start=1):
        bound = end if tier.up_to is None else min(end, tier.up_to * scale)
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
        QUANTITIES[use.quantity].cost(use.units, at_factor(_tier_at(price, units)[1], factor))
        for units in (before, whole)
    )
    if was != now:
        description = f"Volume price of {use.quantity.replace('_', ' ')} on earlier invoices of the period"
        yield amount_line("proration", now - was, description=description, price_version_id=version.id)


def _tier_at(price: TieredPrice, whole: int) -> tuple[int, int]:
    for number, tier in enumerate(price.tiers, start=1):
        if tier.up_to is None or whole <= tier.up_to * QUANTITIES[price.quantity].scale:
            return number, tier.unit_price_nanos
    raise AssertionError("the last tier has no end")


def _line(total: UsageTotal, price: TieredPrice, tier: int, count: int, list_price_nanos: int) -> DraftInvoiceLine:
    quantity = QUANTITIES[price.quantity]
    return _tier_line(total, price, tier, quantity.unit, quantity.in_units(count), list_price_nanos)


def _package_lines(total: UsageTotal, price: TieredPrice, count: int, before: int) -> Iterator[DraftInvoiceLine]:
    """The units that fit into a package that earlier invoices of the period have billed, and the packages begun now."""
    units, list_price_nanos = price.package
    size = units * QUANTITIES[price.quantity].scale
    paid = min(count, -before % size)
    if paid:
        yield msgspec.structs.replace(_line(total, price, 1, paid, 0), description="in a package of an earlier invoice")
    if paid == count:
        return
    packages = Decimal(-(-(count - paid) // size))
    line = _tier_line(total, price, 1, "package", packages, list_price_nanos)
    yield msgspec.structs.replace(line, used_units=QUANTITIES[price.quantity].in_units(count - paid))


def _tier_line(
    total: UsageTotal, price: TieredPrice, tier: int, unit: LineUnit, quantity: Decimal, list_price_nanos: int
) -> DraftInvoiceLine:
    """A line of a tier, over all adapters of the price's models."""
    factor = total.factor_permille
    unit_price_nanos = at_factor(list_price_nanos, factor)
    return DraftInvoiceLine(
        kind=price.quantity,
        base_model=price.base_model,
        price_version_id=total.version.id,
        late_for=total.late_for,
        unit=unit,
        quantity=quantity,
        unit_price_nanos=unit_price_nanos,
        amount_nanos=int(quantity * unit_price_nanos),
        tier=tier,
        service_tier=total.service_tier if total.service_tier != "default" else None,
        list_price_nanos=list_price_nanos if factor < FULL_PERMILLE else None,
    )
