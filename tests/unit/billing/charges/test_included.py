"""Included usage is shared by the time of each version, taken first, and rolls over once."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.charges.state import PeriodState
from billing.prices.card import IncludedUsage, PriceTier, TieredPrice
from core.periods import Period
from tests.fixtures.terms import DECEMBER, DOLLAR, NOVEMBER, day, outputs, state_of, terms, total, used, version

MILLION = 1_000_000


def including(number: int, units: int, *, rollover: bool = False, **more):
    pool = IncludedUsage(quantity="output_tokens", units=units, rollover=rollover)
    return version(number, output_nanos=600, included=(pool,), **more)


@pytest.mark.scenario(28)
def test_an_upgrade_at_half_of_the_month_includes_half_of_each_plan():
    small, large = including(1, MILLION), including(2, 10 * MILLION)
    agreed = terms(small, (day(16), large))
    statement = state_of(agreed, use=used((100_000, small), (5_500_000, large)))
    assert [(int(line.quantity), line.unit_price_nanos, line.price_version_id) for line in statement.lines] == [
        (100_000, 0, "pv_1"), (5_400_000, 0, "pv_2"), (100_000, 600, "pv_2"),
    ]  # fmt: skip
    assert total(statement) == 100_000 * 600


@pytest.mark.scenario(28)
def test_what_is_left_rolls_over_once():
    plan = including(1, MILLION, rollover=True)
    november = state_of(terms(plan), use=used((400_000, plan)))
    december = state_of(terms(plan), DECEMBER, used((1_500_000, plan)), before=november.state)
    assert total(december) == 0
    january = Period(DECEMBER.end, DECEMBER.end + timedelta(days=31))
    assert total(state_of(terms(plan), january, used((1_200_000, plan)), before=december.state)) == 100_000 * 600
    unused = state_of(terms(plan), DECEMBER, before=november.state)
    assert total(state_of(terms(plan), january, used((2_000_001, plan)), before=unused.state)) == 600


def test_without_rollover_nothing_is_left():
    plan = including(1, MILLION)
    november = state_of(terms(plan))
    assert total(state_of(terms(plan), DECEMBER, used((MILLION + 1, plan)), before=november.state)) == 600


def test_tiers_count_what_is_paid():
    steps = (PriceTier(up_to=MILLION, unit_price_nanos=600), PriceTier(up_to=None, unit_price_nanos=400))
    tier = TieredPrice(quantity="output_tokens", mode="graduated", tiers=steps)
    plan = including(1, MILLION, tiers=(tier,))
    statement = state_of(terms(plan), use=used((2_500_000, plan)))
    assert total(statement) == MILLION * 600 + 500_000 * 400
    assert sum(int(line.quantity) for line in statement.lines) == 2_500_000


def test_a_pool_of_a_model_is_taken_before_the_one_of_all_models():
    pools = (
        IncludedUsage(quantity="output_tokens", units=10),
        IncludedUsage(quantity="output_tokens", units=5, base_model="large"),
    )
    plan = version(1, output_nanos=600, included=pools)
    use = used((12, plan))
    use = use._replace(totals=[outputs(12, plan), outputs(5, plan, base_model="large")])
    assert total(state_of(terms(plan), use=use)) == 2 * 600


@given(
    st.lists(st.integers(0, 3_000), min_size=1, max_size=6),
    st.integers(1, 6_000),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_usage_in_any_order_costs_the_same_and_every_unit_has_a_line(quantities, units, rollover, order):
    plan = including(1, units, rollover=rollover)
    use = used(*((tokens, plan) for tokens in quantities))
    shuffled = use._replace(totals=order.sample(list(use.totals), len(use.totals)))
    statement, again = (state_of(terms(plan), use=each) for each in (use, shuffled))
    assert total(statement) == total(again) == max(0, sum(quantities) - units) * 600
    assert statement.state == again.state
    assert sum(int(line.quantity) for line in statement.lines) == sum(quantities)


@given(
    st.lists(st.integers(0, 3_000), min_size=4, max_size=4),
    st.sets(st.integers(1, 29), min_size=3, max_size=3),
    st.integers(1, 6_000),
)
def test_a_month_in_several_invoices_includes_as_much_as_in_one(quantities, days, units):
    plan = including(1, units, base_fee_nanos=3 * DOLLAR)
    borders = [NOVEMBER.start, *(NOVEMBER.start + timedelta(days=each) for each in sorted(days)), NOVEMBER.end]
    state, charged = PeriodState(), 0
    for (start, end), tokens in zip(pairwise(borders), quantities, strict=True):
        statement = state_of(terms(plan), Period(start, end), used((tokens, plan)), before=state)
        state, charged = statement.state, charged + total(statement)
    assert charged == max(0, sum(quantities) - units) * 600 + 3 * DOLLAR
