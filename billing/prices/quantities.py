"""The quantities of usage and of resources: how each is counted, priced, stored and printed. Prices, lines, documents
and the sums that they are made of read this table. Sums that quotas and reconciliation read (``usage.sums``, by month
and by replica) have columns of their own. Pure: no database.
"""

from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Decimal, localcontext
from typing import Any, Final, Literal

import msgspec

from core.rating import MS_PER_PAGE_SECOND

UsageKind = Literal["uncached_input_tokens", "cached_input_tokens", "output_tokens", "kv_page_seconds"]
ResourceKind = Literal["adapter_storage", "pinned_slots", "cold_loads"]
LineUnit = Literal["token", "page_second", "package", "gb_hour", "slot_hour", "load", "amount"]

_NINE_PLACES: Final = Decimal("1e-9")


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A priced quantity. ``price`` is the field of its unit price, and ``scale`` how many counted units one priced
    ``unit`` has. Counts are whole; only what is shown is in units.
    """

    words: str
    price: str
    unit: LineUnit
    scale: int = 1

    def in_units(self, count: int) -> Decimal:
        """A count in priced units, with at most nine places. It is rounded up, so that no line costs more than its
        quantity; amounts are computed from the count.
        """
        with localcontext() as context:
            context.prec = 50
            units = Decimal(count) / self.scale
            shown = units.quantize(_NINE_PLACES, rounding=ROUND_UP)
            return units if units == shown else shown

    def cost(self, count: int, unit_price_nanos: int) -> int:
        """What a count costs, cut below one nanodollar."""
        return count * unit_price_nanos // self.scale


class Quantity(Measure, frozen=True, kw_only=True):
    """A quantity of usage, which records and sums have in ``column``, without what they have in ``less``. ``amount`` is
    the column of what it costs, and ``requests`` the column of sums that counts the requests with any of it.
    """

    column: str
    less: str | None = None
    amount: str
    requests: str

    @property
    def count(self) -> str:
        """The SQL of what a record or a sum has of it."""
        return self.column if self.less is None else f"({self.column} - {self.less})"

    def counted(self, row: Mapping[str, Any]) -> int:  # columns of several types
        """What a record or a sum has of it."""
        whole: int = row[self.column]
        return whole if self.less is None else whole - row[self.less]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one request used, as ``core.rating.rate`` reads it: convert a row with these columns."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int


QUANTITIES: Final[dict[UsageKind, Quantity]] = {
    "uncached_input_tokens": Quantity(
        words="Prompt tokens", price="input_nanos", unit="token",
        column="input_tokens", less="cached_tokens", amount="input_nanos", requests="uncached_requests",
    ),
    "cached_input_tokens": Quantity(
        words="Cached prompt tokens", price="cached_input_nanos", unit="token",
        column="cached_tokens", amount="cached_input_nanos", requests="cached_requests",
    ),
    "output_tokens": Quantity(
        words="Generated tokens", price="output_nanos", unit="token",
        column="output_tokens", amount="output_nanos", requests="output_requests",
    ),
    "kv_page_seconds": Quantity(
        words="KV page-seconds", price="kv_page_second_nanos", unit="page_second", scale=MS_PER_PAGE_SECOND,
        column="kv_page_ms", amount="kv_nanos", requests="kv_requests",
    ),
}  # fmt: skip
"""Usage, in the order of print."""

RESOURCES: Final[dict[ResourceKind, Measure]] = {
    "adapter_storage": Measure(
        words="Adapter storage", price="adapter_storage_gb_hour_nanos", unit="gb_hour", scale=1_000_000_000 * 3_600
    ),
    "pinned_slots": Measure(words="Pinned slots", price="pinned_slot_hour_nanos", unit="slot_hour", scale=3_600_000),
    "cold_loads": Measure(words="Cold loads", price="cold_load_nanos", unit="load"),
}
"""Resources, in the order of print. They are counted in byte-seconds, slot-milliseconds and loads."""

COUNTED: Final = ("input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms")
"""The columns of records and sums that count usage. ``input_tokens`` includes the two after it."""

AMOUNTS: Final = tuple(each.amount for each in QUANTITIES.values())
"""The columns of records and sums that say what usage costs."""

AMOUNT_SQL: Final = " + ".join(AMOUNTS)


def each_quantity(template: str, kinds: Iterable[UsageKind] = tuple(QUANTITIES)) -> str:
    """SQL for all quantities: the template with ``{kind}``, ``{count}``, ``{amount}`` and ``{requests}`` of each."""
    return ", ".join(
        template.format(kind=kind, count=each.count, amount=each.amount, requests=each.requests, scale=each.scale)
        for kind in kinds
        for each in (QUANTITIES[kind],)
    )
