"""Turns usage that is added up by model and price into invoice lines. Pure: no database.

A line is ``quantity`` units at ``unit_price_nanos`` each. A quantity of zero makes no line, so an invoice lists only
what was used. Money is rounded once, on the total of all lines; each line then gets whole cents of that total.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec

from billing.views import LineKind, LineUnit
from core.contracts.grants import Prices
from core.money import distribute_cents


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the records of one model at one price version. ``late_for`` is the start of the month in which late
    usage settled, None for usage of the period itself.

    The ``…_requests`` count the requests whose quantity is not zero.
    """

    base_model: str
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

    @property
    def amount_nanos(self) -> int:
        """The cost of all quantities."""
        return self.input_nanos + self.cached_input_nanos + self.output_nanos + self.kv_nanos


class DraftInvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice line before it has an id."""

    kind: LineKind
    base_model: str
    adapter_id: str | None
    adapter_name: str | None
    price_version_id: str
    late_for: datetime | None
    unit: LineUnit
    quantity: Decimal
    unit_price_nanos: int
    amount_nanos: int
    amount_cents: int = 0
    request_count: int


def lines_of(totals: Sequence[UsageTotal]) -> list[DraftInvoiceLine]:
    """Every line, in the order of the totals. Together they are exactly the cost of the totals, and their cents are
    that cost rounded once.
    """
    lines = [line for total in totals for line in _lines(total)]
    assert sum(line.amount_nanos for line in lines) == sum(total.amount_nanos for total in totals), (
        "no usage is left out"
    )
    cents = distribute_cents([line.amount_nanos for line in lines])
    return [msgspec.structs.replace(line, amount_cents=share) for line, share in zip(lines, cents, strict=True)]


def _lines(total: UsageTotal) -> Iterator[DraftInvoiceLine]:
    prices = total.prices
    parts: tuple[tuple[LineKind, LineUnit, Decimal, int, int, int], ...] = (
        (
            "uncached_input_tokens", "token", Decimal(total.uncached_input_tokens),
            prices.input_nanos, total.input_nanos, total.uncached_requests,
        ),
        (
            "cached_input_tokens", "token", Decimal(total.cached_tokens),
            prices.cached_input_nanos, total.cached_input_nanos, total.cached_requests,
        ),
        (
            "output_tokens", "token", Decimal(total.output_tokens),
            prices.output_nanos, total.output_nanos, total.output_requests,
        ),
        (
            "kv_page_seconds", "page_second", Decimal(total.kv_page_ms).scaleb(-3),
            prices.kv_page_second_nanos, total.kv_nanos, total.kv_requests,
        ),
    )  # fmt: skip
    for kind, unit, quantity, unit_price_nanos, amount_nanos, request_count in parts:
        if quantity == 0:
            assert amount_nanos == 0, "nothing costs nothing"
            continue
        yield DraftInvoiceLine(
            kind=kind,
            base_model=total.base_model,
            adapter_id=total.adapter_id,
            adapter_name=total.adapter_name,
            price_version_id=total.price_version_id,
            late_for=total.late_for,
            unit=unit,
            quantity=quantity,
            unit_price_nanos=unit_price_nanos,
            amount_nanos=amount_nanos,
            request_count=request_count,
        )
