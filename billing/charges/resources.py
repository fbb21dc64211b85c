"""The lines of resources that are metered by the hour: adapter storage, pinned slots and cold loads. Pure: no database.

An hour costs what the version in force at its start charges. Amounts are cut below one nanodollar for each adapter.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from billing.charges.lines import DraftInvoiceLine
from billing.prices.card import PriceCard
from billing.views import LineUnit, PriceView, ResourceLineKind

_UNIT: Final[dict[ResourceLineKind, LineUnit]] = {
    "adapter_storage": "gb_hour",
    "pinned_slots": "slot_hour",
    "cold_loads": "load",
}


class ResourceTotal(NamedTuple):
    """What one adapter, or "", used of a resource under one price version."""

    kind: ResourceLineKind
    adapter_id: str
    adapter_name: str | None
    version: PriceView
    quantity: Decimal


class _Owner(NamedTuple):
    kind: ResourceLineKind
    price: tuple[datetime, str]
    adapter_id: str
    adapter_name: str | None


def resource_lines(totals: Sequence[ResourceTotal]) -> Iterator[DraftInvoiceLine]:
    """A line for each resource, price version and adapter."""
    quantities: defaultdict[_Owner, Decimal] = defaultdict(Decimal)
    versions: dict[str, PriceView] = {}
    for total in totals:
        versions[total.version.id] = total.version
        price = (total.version.effective_from, total.version.id)
        quantities[_Owner(total.kind, price, total.adapter_id, total.adapter_name)] += total.quantity
    in_print_order = sorted(quantities.items(), key=lambda item: (item[0].kind, *item[0].price, item[0].adapter_id))
    for (kind, (_, version_id), adapter_id, name), quantity in in_print_order:
        unit_price_nanos = unit_price(versions[version_id].card, kind)
        if quantity > 0 and unit_price_nanos > 0:
            yield DraftInvoiceLine(
                kind=kind,
                base_model=None,
                rank_class=None,
                adapter_id=adapter_id or None,
                adapter_name=name,
                price_version_id=version_id,
                late_for=None,
                unit=_UNIT[kind],
                quantity=quantity,
                unit_price_nanos=unit_price_nanos,
                amount_nanos=int(quantity * unit_price_nanos),
                request_count=None,
            )


def unit_price(card: PriceCard, kind: ResourceLineKind) -> int:
    """What a card charges for a unit of a resource."""
    match kind:
        case "adapter_storage":
            return card.adapter_storage_gb_hour_nanos
        case "pinned_slots":
            return card.pinned_slot_hour_nanos
        case "cold_loads":
            return card.cold_load_nanos


def has_resource_prices(card: PriceCard) -> bool:
    """Whether a card charges for any resource."""
    return any(unit_price(card, kind) > 0 for kind in _UNIT)
