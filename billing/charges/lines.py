"""The lines of an invoice and the sums of usage that they are made of. Pure: no database.

A line is ``quantity`` units at ``unit_price_nanos`` each. A quantity of zero makes no line, so an invoice lists only
what was used. Money is rounded once, on the total of all lines; each line then gets whole cents of that total.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from billing.prices.card import FULL_PERMILLE, PRICE_OF, ResourceLineKind
from core.contracts.grants import Prices, ServiceTier
from core.money import at_factor, distribute_cents
from core.periods import Period

UsageLineKind = Literal["uncached_input_tokens", "cached_input_tokens", "output_tokens", "kv_page_seconds"]
LineKind = (
    UsageLineKind | ResourceLineKind | Literal["base_fee", "proration", "discount", "coupon", "commitment", "carried"]
)
LINE_KINDS_IN_WORDS: Final[Mapping[LineKind, str]] = {
    "uncached_input_tokens": "Prompt tokens",
    "cached_input_tokens": "Cached prompt tokens",
    "output_tokens": "Generated tokens",
    "kv_page_seconds": "KV page-seconds",
    "adapter_storage": "Adapter storage",
    "pinned_slots": "Pinned slots",
    "cold_loads": "Cold loads",
    "base_fee": "Base fee",
    "proration": "Proration",
    "discount": "Discount",
    "coupon": "Coupon",
    "commitment": "Commitment",
    "carried": "Carried over",
}
"""What a line is called on every document and at Stripe."""
LineUnit = Literal["token", "page_second", "package", "gb_hour", "slot_hour", "load", "amount"]


class DraftInvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice line before it has an id and, until ``with_cents``, its cents: see ``InvoiceLineView``.

    A discount, a coupon, a proration or what is carried over may have a negative amount; nothing else may.
    """

    kind: LineKind
    base_model: str | None
    rank_class: int | None
    adapter_id: str | None
    adapter_name: str | None
    price_version_id: str | None
    late_for: datetime | None
    unit: LineUnit
    quantity: Decimal
    unit_price_nanos: int
    amount_nanos: int
    request_count: int | None
    tier: int | None = None
    used_units: Decimal | None = None
    description: str | None = None
    source_id: str | None = None
    covers_from: datetime | None = None
    covers_until: datetime | None = None
    service_tier: ServiceTier | None = None
    list_price_nanos: int | None = None
    amount_cents: int = 0


class LineFigures(NamedTuple):
    """Tokens or KV page-milliseconds, their unit price before tiers, what they cost and how many requests used any."""

    quantity: int
    unit_price_nanos: int
    amount_nanos: int
    request_count: int


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the records of one model at one price version and service tier. ``prices`` are the listed prices of the
    model, of which the tier pays ``factor_permille``.
    ``late_for`` is the start of the month in which late usage settled, None for usage of the period itself.

    The ``…_requests`` count the requests whose quantity is not zero. The ``…_nanos`` are what the records cost, at the
    highest price where a quantity has tiers.
    """

    base_model: str
    rank_class: int | None
    adapter_id: str | None
    adapter_name: str | None
    price_version_id: str
    late_for: datetime | None
    prices: Prices
    uncached_input_tokens: int
    input_nanos: int
    uncached_requests: int
    cached_tokens: int
    cached_input_nanos: int
    cached_requests: int
    output_tokens: int
    output_nanos: int
    output_requests: int
    kv_page_ms: int
    kv_nanos: int
    kv_requests: int
    service_tier: ServiceTier = "default"
    factor_permille: int = FULL_PERMILLE

    @property
    def recorded_nanos(self) -> int:
        """What the records cost."""
        return self.input_nanos + self.cached_input_nanos + self.output_nanos + self.kv_nanos

    def figures(self, kind: UsageLineKind) -> LineFigures:
        """What was used of a kind, at which price."""
        at = at_factor(self.list_price_nanos(kind), self.factor_permille)
        match kind:
            case "uncached_input_tokens":
                return LineFigures(self.uncached_input_tokens, at, self.input_nanos, self.uncached_requests)
            case "cached_input_tokens":
                return LineFigures(self.cached_tokens, at, self.cached_input_nanos, self.cached_requests)
            case "output_tokens":
                return LineFigures(self.output_tokens, at, self.output_nanos, self.output_requests)
            case "kv_page_seconds":
                return LineFigures(self.kv_page_ms, at, self.kv_nanos, self.kv_requests)

    @property
    def paid(self) -> Prices:
        """The unit prices before tiers, at the batch factor."""
        listed = msgspec.structs.asdict(self.prices)
        return Prices(**{name: at_factor(nanos, self.factor_permille) for name, nanos in listed.items()})

    def list_price_nanos(self, kind: UsageLineKind) -> int:
        """The unit price before tiers and the batch factor."""
        price: int = getattr(self.prices, PRICE_OF[kind])
        return price

    def line(self, kind: UsageLineKind) -> DraftInvoiceLine:
        """The line of a quantity that has no tiers: its amount is what the records cost."""
        found = self.figures(kind)
        return DraftInvoiceLine(
            kind=kind,
            base_model=self.base_model,
            rank_class=self.rank_class,
            adapter_id=self.adapter_id,
            adapter_name=self.adapter_name,
            price_version_id=self.price_version_id,
            late_for=self.late_for,
            unit="page_second" if kind == "kv_page_seconds" else "token",
            quantity=in_units(kind, found.quantity),
            unit_price_nanos=found.unit_price_nanos,
            amount_nanos=found.amount_nanos,
            request_count=found.request_count,
            service_tier=self.service_tier if self.service_tier != "default" else None,
            list_price_nanos=self.list_price_nanos(kind) if self.factor_permille < FULL_PERMILLE else None,
        )

    def line_of_part(
        self, kind: UsageLineKind, quantity: int, *, unit_price_nanos: int | None = None
    ) -> DraftInvoiceLine:
        """The line of a part of a quantity that has no tiers, at its price or at another one. It counts no requests."""
        whole = self.line(kind)
        at = whole.unit_price_nanos if unit_price_nanos is None else unit_price_nanos
        return msgspec.structs.replace(
            whole,
            quantity=in_units(kind, quantity),
            unit_price_nanos=at,
            amount_nanos=quantity * at // 1_000 if kind == "kv_page_seconds" else quantity * at,
            request_count=None,
            description="included" if unit_price_nanos == 0 else None,
            list_price_nanos=None if unit_price_nanos == 0 else whole.list_price_nanos,
        )


def in_units(kind: UsageLineKind, quantity: int) -> Decimal:
    """A quantity in the unit of its price: tokens, or page-milliseconds as page-seconds."""
    return Decimal(quantity).scaleb(-3) if kind == "kv_page_seconds" else Decimal(quantity)


def with_cents(lines: Sequence[DraftInvoiceLine]) -> list[DraftInvoiceLine]:
    """The lines with their shares of the total, which is rounded once."""
    cents = distribute_cents([line.amount_nanos for line in lines])
    return [msgspec.structs.replace(line, amount_cents=share) for line, share in zip(lines, cents, strict=True)]


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
        base_model=None,
        rank_class=None,
        adapter_id=None,
        adapter_name=None,
        price_version_id=price_version_id,
        late_for=None,
        unit="amount",
        quantity=Decimal(1),
        unit_price_nanos=amount_nanos,
        amount_nanos=amount_nanos,
        request_count=None,
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
