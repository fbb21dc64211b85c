"""Takes included usage off a period's usage, as a pure function of the terms, the sums of usage and what is left over.

A pool is the sum over the versions in force in the period of what each includes, by its share of the period. The first
units of the period are taken from it, in the order of price versions, flex usage after the other usage of a version; a
pool of the model before one of all models.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from billing.charges.lines import UsageTotal
from billing.charges.proration import Stretch, TenantTerms, prorated
from billing.charges.state import Pool
from billing.prices.card import PRICE_OF, IncludedUsage, TieredQuantity
from billing.prices.price_book import PriceView
from core.periods import Period

_MS: Final = 1_000

_Key = tuple[TieredQuantity, str]
"""A quantity and a base model, "" for all models."""

Taken = Mapping[tuple[UsageTotal, TieredQuantity], int]
"""How many units of a sum are included."""


class Included(NamedTuple):
    """What is included of each sum, and the pools afterwards."""

    taken: Taken
    pools: tuple[Pool, ...]


NOTHING_INCLUDED: Final = Included({}, ())


def take_included(
    terms: TenantTerms,
    billed: Period,
    totals: Sequence[UsageTotal],
    versions: Mapping[str, PriceView],
    before: Sequence[Pool],
) -> Included:
    """What the pools of the period that holds ``billed`` include of the totals. ``before`` are its pools so far."""
    around = terms.calendars.period_at(billed.start)
    whole = terms.calendars.at(billed.start).period_at(billed.start)
    stretches = list(terms.stretches(around))
    earlier: dict[_Key, Pool] = {(pool.quantity, pool.base_model or ""): pool for pool in before}
    keys = earlier.keys() | {_key(each) for stretch in stretches for each in _of(stretch.version)}
    if not keys:
        return NOTHING_INCLUDED
    own = {key: prorated(((stretch, _units(stretch, key)) for stretch in stretches), whole) for key in keys}
    pools = {key: earlier.get(key, Pool(quantity=key[0], base_model=key[1] or None)) for key in keys}
    available = {key: max(0, own[key] - pool.granted + pool.left) for key, pool in pools.items()}
    taken: defaultdict[tuple[UsageTotal, TieredQuantity], int] = defaultdict(int)
    for total in sorted(totals, key=lambda total: _order(total, versions)):
        for quantity in PRICE_OF:
            for key in ((quantity, total.base_model), (quantity, "")):
                units = min(total.figures(quantity).quantity - taken[total, quantity], available.get(key, 0))
                if units > 0:
                    taken[total, quantity] += units
                    available[key] -= units
    ends = around.end == billed.end
    at_end = {_key(each): each for each in _of(stretches[-1].version)}
    left = {key: _left(at_end.get(key), units, own[key]) if ends else units for key, units in available.items()}
    after = (msgspec.structs.replace(pools[key], granted=own[key], left=left[key]) for key in sorted(keys))
    return Included({key: units for key, units in taken.items() if units}, tuple(after))


def _of(version: PriceView | None) -> tuple[IncludedUsage, ...]:
    return () if version is None else version.card.included


def _key(included: IncludedUsage) -> _Key:
    return included.quantity, included.base_model or ""


def _units(stretch: Stretch, key: _Key) -> int:
    """What a version includes in a whole period."""
    units = sum(each.units for each in _of(stretch.version) if _key(each) == key)
    return units * _MS if key[0] == "kv_page_seconds" else units


def _left(included: IncludedUsage | None, units: int, own: int) -> int:
    """What a period leaves to the next one: at most its own units, so that no unit rolls over twice."""
    return min(units, own) if included is not None and included.rollover else 0


def _order(total: UsageTotal, versions: Mapping[str, PriceView]) -> tuple[bool, str, str, str, str, int, str]:
    version = versions[total.price_version_id]
    return (
        total.late_for is not None,
        version.effective_from.isoformat(),
        version.id,
        total.service_tier,
        total.base_model,
        total.rank_class or 0,
        total.adapter_id or "",
    )
