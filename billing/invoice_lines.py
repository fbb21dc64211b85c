"""Turns usage that is added up by model and price into invoice lines, each rounded to cents once. Pure: no database.

A quantity of zero makes no line, so an invoice lists only what was used.
"""

from collections.abc import Iterator, Sequence

import msgspec

from billing.views import LineKind
from core.contracts.grants import Prices
from core.money import round_to_cents


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the records of one model at one price version. Here ``input_tokens`` excludes the cached ones.

    The ``…_requests`` count the requests whose quantity is not zero.
    """

    base_model: str
    adapter_id: str | None
    price_version_id: str
    prices: Prices
    input_tokens: int
    input_nanos: int
    input_requests: int
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
    price_version_id: str
    quantity: int
    unit_price_nanos: int
    amount_nanos: int
    amount_cents: int
    request_count: int


def lines_of(totals: Sequence[UsageTotal]) -> list[DraftInvoiceLine]:
    """Every line, in the order of the totals. Together they are exactly the cost of the totals."""
    lines = [line for total in totals for line in _lines(total)]
    assert sum(line.amount_nanos for line in lines) == sum(total.amount_nanos for total in totals), (
        "no usage is left out"
    )
    return lines


def _lines(total: UsageTotal) -> Iterator[DraftInvoiceLine]:
    prices = total.prices
    parts: tuple[tuple[LineKind, int, int, int, int], ...] = (
        ("input_tokens", total.input_tokens, prices.input_nanos, total.input_nanos, total.input_requests),
        (
            "cached_input_tokens",
            total.cached_tokens, prices.cached_input_nanos, total.cached_input_nanos, total.cached_requests,
        ),
        ("output_tokens", total.output_tokens, prices.output_nanos, total.output_nanos, total.output_requests),
        ("kv_page_seconds", total.kv_page_ms, prices.kv_page_second_nanos, total.kv_nanos, total.kv_requests),
    )  # fmt: skip
    for kind, quantity, unit_price_nanos, amount_nanos, request_count in parts:
        if quantity == 0:
            assert amount_nanos == 0, "nothing costs nothing"
            continue
        yield DraftInvoiceLine(
            kind=kind,
            base_model=total.base_model,
            adapter_id=total.adapter_id,
            price_version_id=total.price_version_id,
            quantity=quantity,
            unit_price_nanos=unit_price_nanos,
            amount_nanos=amount_nanos,
            amount_cents=round_to_cents(amount_nanos),
            request_count=request_count,
        )
