"""The lines of resources that are metered by the hour: adapter storage, pinned slots and cold loads. Pure: no database.

An hour costs what the price version in force at its start charges. The units of a line are added up first, so its
amount is exact and cut once, below one nanodollar.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from billing.charges.lines import DraftInvoiceLine
from billing.prices.price_book import PriceView
from billing.prices.quantities import RESOURCES, ResourceKind

_KINDS: Final = tuple(RESOURCES)


class ResourceTotal(NamedTuple):
    """What one adapter used of a resource under one price version. ``rank_class`` 0 stands for none. ``late_for`` is
    the month of hours that were metered after their period was invoiced.
    """

    kind: ResourceKind
    adapter_id: str
    adapter_name: str | None
    base_model: str
    rank_class: int
    late_for: datetime | None
    version: PriceView
    units: int


_Group = tuple[str, int, datetime, str, str, str, int]


def resource_charge(totals: Iterable[ResourceTotal]) -> list[DraftInvoiceLine]:
    """A line for each resource, price version, adapter and rank class that has a price. Late hours come last."""
    groups: defaultdict[_Group, list[ResourceTotal]] = defaultdict(list)
    for total in totals:
        groups[_group(total)].append(total)
    lines = (_line(groups[key][0], sum(total.units for total in groups[key])) for key in sorted(groups))
    return [line for line in lines if line is not None]


def _group(total: ResourceTotal) -> _Group:
    """What has one line. The order of groups is the order of print."""
    return (
        "" if total.late_for is None else total.late_for.isoformat(),
        _KINDS.index(total.kind),
        total.version.effective_from,
        total.version.id,
        total.base_model,
        total.adapter_id,
        total.rank_class,
    )


def _line(of: ResourceTotal, units: int) -> DraftInvoiceLine | None:
    rank_class = of.rank_class or None
    unit_price_nanos = of.version.card.resource_nanos(of.kind, of.base_model, rank_class)
    if units == 0 or unit_price_nanos == 0:
        return None
    resource = RESOURCES[of.kind]
    return DraftInvoiceLine(
        kind=of.kind,
        base_model=of.base_model,
        rank_class=rank_class,
        adapter_id=of.adapter_id,
        adapter_name=of.adapter_name,
        price_version_id=of.version.id,
        late_for=of.late_for,
        unit=resource.unit,
        quantity=resource.in_units(units),
        unit_price_nanos=unit_price_nanos,
        amount_nanos=resource.cost(units, unit_price_nanos),
    )
