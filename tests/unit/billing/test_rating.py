"""Rating is arithmetic: exact, repeatable, and never against the tenant."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.settings import EVENT_KV_PAGE_MS_MAX, EVENT_TOKENS_MAX
from core.contracts.grants import Prices
from core.rating import rate


class Used(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    kv_page_ms: int = 0


PRICES = Prices(input_nanos=150, cached_input_nanos=75, output_nanos=600, kv_page_second_nanos=1_001)

some_prices = st.builds(
    Prices,
    input_nanos=st.integers(0, 1_000_000_000),
    cached_input_nanos=st.integers(0, 1_000_000_000),
    output_nanos=st.integers(0, 1_000_000_000),
    kv_page_second_nanos=st.integers(0, 1_000_000_000),
)
some_usage = st.integers(0, EVENT_TOKENS_MAX).flatmap(
    lambda tokens: st.builds(
        Used,
        input_tokens=st.just(tokens),
        cached_tokens=st.integers(0, tokens),
        output_tokens=st.integers(0, EVENT_TOKENS_MAX),
        kv_page_ms=st.integers(0, EVENT_KV_PAGE_MS_MAX),
    )
)


def test_each_part_has_its_price_and_cached_tokens_are_not_charged_twice():
    charge = rate(Used(input_tokens=100, cached_tokens=32, output_tokens=20, kv_page_ms=1_601), PRICES)
    assert charge.input_nanos == 68 * 150
    assert charge.cached_input_nanos == 32 * 75
    assert charge.output_nanos == 20 * 600
    assert charge.kv_nanos == 1_602  # 1,602.601 nanodollars
    assert charge.amount_nanos == 68 * 150 + 32 * 75 + 20 * 600 + 1_602


def test_nothing_costs_nothing():
    assert rate(Used(), PRICES).amount_nanos == 0


@given(some_usage, some_prices)
def test_the_charge_is_the_exact_price_less_than_one_nanodollar_below(used, prices):
    exact = (
        (used.input_tokens - used.cached_tokens) * prices.input_nanos
        + used.cached_tokens * prices.cached_input_nanos
        + used.output_tokens * prices.output_nanos
        + Fraction(used.kv_page_ms * prices.kv_page_second_nanos, 1000)
    )
    amount_nanos = rate(used, prices).amount_nanos
    assert 0 <= exact - amount_nanos < 1
    assert rate(used, prices).amount_nanos == amount_nanos


@given(some_usage, some_prices)
def test_the_largest_allowed_charge_fits_the_column(used, prices):
    assert rate(used, prices).amount_nanos < 2**63


@pytest.mark.parametrize("wrong", [{"cached_tokens": 1}, {"output_tokens": -1}, {"kv_page_ms": -1}])
def test_impossible_quantities_are_never_rated(wrong):
    with pytest.raises(AssertionError):
        rate(Used(**wrong), PRICES)
