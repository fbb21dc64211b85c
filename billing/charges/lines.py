"""Invoice lines, and the sums of usage that most of them are made of. Pure: no database.

A line is ``quantity`` units at ``unit_price_nanos`` each. A quantity of zero makes no line, so an invoice lists only
what was used. Money is rounded once, on the total of all lines (``billing.invoicing.finalizing``).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from billing.prices.card import FULL_PERMILLE
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES, RESOURCES, LineUnit, ResourceKind, UsageKind
from core.contracts.grants import Prices, ServiceTier
from core.money import at_factor
from core.periods import Period

LineKind = UsageKind | ResourceKind | Literal["base_fee", "proration", "discount", "coupon", "commitment", "carried"]
LINE_KINDS_IN_WORDS: Final[Mapping[LineKind, str]] = {
    **{kind: quantity.words for kind, quantity in QUANTITIES.items()},
    **{kind: resource.words for kind, resource in RESOURCES.items()},
    "base_fee": "Base fee",
    "proration": "Proration",
    "discount": "Discount",
    "coupon": "Coupon",
    "commitment": "Commitment",
    "carried": "Carried over",
}
"""What a line is called on every document."""

INCLUDED: Final = "included"
"""The description of a line of included units."""


class DraftInvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of an invoice line, as a period's charge decides them; ``finalizing`` adds the cents, an id and a
    position. ``billing.invoices.views.InvoiceLineView`` says what they mean.

    A discount, a coupon, a proration or a carried amount may be negative; nothing else may.
    """

    kind: LineKind
    base_model: str | None = None
    rank_class: int | None = None
    adapter_id: str | None = None
    adapter_name: str | None = None
    price_version_id: str | None = None
    late_for: datetime | None = None
    unit: LineUnit
    quantity: Decimal
    unit_price_nanos: int
    amount_nanos: int
    request_count: int | None = None
    tier: int | None = None
    used_units: Decimal | None = None
    description: str | None = None
    source_id: str | None = None
    covers_from: datetime | None = None
    covers_until: datetime | None = None
    service_tier: ServiceTier | None = None
    list_price_nanos: int | None = None
    amount_cents: int = 0


class UsedQuantity(NamedTuple):
    """What was used of one quantity: tokens or KV page-milliseconds, what the records cost, and how many requests used
    any of it.
    """

    counted: int = 0
    nanos: int = 0
    requests: int = 0


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the records of one model and adapter at one price version and service tier; quantities without usage
    are left out. ``late_for`` is the start of the month in which late usage settled, None for usage of the period
    itself. Records cost the highest price where a quantity has tiers.
    """

    base_model: str
    rank_class: int | None = None
    adapter_id: str | None = None
    adapter_name: str | None = None
    version: PriceView
    late_for: datetime | None = None
    service_tier: ServiceTier = "default"
    used: Mapping[UsageKind, UsedQuantity]

    @property
    def recorded_nanos(self) -> int:
        """What the records cost."""
        return sum(each.nanos for each in self.used.values())

    @property
    def list_prices(self) -> Prices:
        """The unit prices of the model, before tiers and the batch factor."""
        return self.version.card.listed(self.base_model, self.rank_class)

    @property
    def factor_permille(self) -> int:
        """The part of a price that the service tier pays."""
        return self.version.card.factor_permille(self.service_tier)

    def line(self, kind: UsageKind, listed: Prices) -> DraftInvoiceLine:
        """The line of a quantity at its list price: its amount is what the records cost."""
        quantity, used, factor = QUANTITIES[kind], self.used[kind], self.factor_permille
        price_nanos: int = getattr(listed, quantity.price)
        return DraftInvoiceLine(
            kind=kind,
            base_model=self.base_model,
            rank_class=self.rank_class,
            adapter_id=self.adapter_id,
            adapter_name=self.adapter_name,
            price_version_id=self.version.id,
            late_for=self.late_for,
            unit=quantity.unit,
            quantity=quantity.in_units(used.counted),
            unit_price_nanos=at_factor(price_nanos, factor),
            amount_nanos=used.nanos,
            request_count=used.requests,
            service_tier=self.service_tier if self.service_tier != "default" else None,
            list_price_nanos=price_nanos if factor < FULL_PERMILLE else None,
        )


def part_of(line: DraftInvoiceLine, kind: UsageKind, count: int, *, free: bool = False) -> DraftInvoiceLine:
    """The line of a part of a quantity, at the line's price or ``free``. It counts no requests."""
    quantity = QUANTITIES[kind]
    price_nanos = 0 if free else line.unit_price_nanos
    return msgspec.structs.replace(
        line,
        quantity=quantity.in_units(count),
        unit_price_nanos=price_nanos,
        amount_nanos=quantity.cost(count, price_nanos),
        request_count=None,
        description=INCLUDED if free else None,
        list_price_nanos=None if free else line.list_price_nanos,
    )


def amount_line(
    kind: LineKind,
    amount_nanos: int,
    *,
    description: str,
    price_version_id: str | None = None,
    source_id: str | None = None,
    covers: Period | None = None,
) -> DraftInvoiceLine:
    """A line of an amount that is no usage."""
    return DraftInvoiceLine(
        kind=kind,
        price_version_id=price_version_id,
        unit="amount",
        quantity=Decimal(1),
        unit_price_nanos=amount_nanos,
        amount_nanos=amount_nanos,
        description=description,
        source_id=source_id,
        covers_from=None if covers is None else covers.start,
        covers_until=None if covers is None else covers.end,
    )


def merged(lines: Sequence[DraftInvoiceLine]) -> list[DraftInvoiceLine]:
    """The lines with those of the same thing at the same price added up. Tiers and amounts stay as they are."""
    found: dict[DraftInvoiceLine | int, DraftInvoiceLine] = {}
    for number, line in enumerate(lines):
        if line.tier is not None or line.unit == "amount":
            found[number] = line
            continue
        key = msgspec.structs.replace(line, quantity=Decimal(0), amount_nanos=0, request_count=None)
        before = found.get(key)
        if before is not None:
            counts = (before.request_count, line.request_count)
            found[key] = msgspec.structs.replace(
                line,
                quantity=before.quantity + line.quantity,
                amount_nanos=before.amount_nanos + line.amount_nanos,
                request_count=sum(count for count in counts if count is not None) if None not in counts else None,
            )
        else:
            found[key] = line
    return list(found.values())
