"""Discounts apply in the order of granting, and coupons until they are used up or expire."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.subscriptions.discounts import DiscountTerms
from core.periods import EPOCH, Period
from tests.fixtures.terms import (
    DECEMBER,
    DOLLAR,
    NOVEMBER,
    amounts,
    at,
    day,
    state_of,
    terms,
    total,
    used,
    version,
)

PLAN = version(1, output_nanos=600)
WITH_FEE = version(1, output_nanos=600, base_fee_nanos=7 * DOLLAR)
JANUARY = Period(DECEMBER.end, at("2027-02-01"))


def percent(hundredths: int, **more) -> DiscountTerms:
    values = {"id": f"dis_{hundredths}", "name": "partner", "duration": "forever", "begins": EPOCH} | more
    return DiscountTerms(percent_hundredths=hundredths, **values)


def amount(dollars: int, **more) -> DiscountTerms:
    values = {"id": f"dis_{dollars}usd", "name": "welcome", "duration": "forever", "begins": EPOCH} | more
    return DiscountTerms(amount_nanos=dollars * DOLLAR, **values)


def charged(dollars: int, billed=NOVEMBER, *discounts: DiscountTerms, before=None):
    """The statement of a base fee of so many dollars."""
    plan = version(1, base_fee_nanos=dollars * DOLLAR)
    return state_of(terms(plan), billed, discounts=discounts, before=before)


@pytest.mark.scenario(38)
def test_two_discounts_apply_one_after_the_other_and_are_printed_in_that_order():
    statement = charged(50, NOVEMBER, percent(1_000), amount(5))
    assert amounts(statement, "discount") == [-5 * DOLLAR, -5 * DOLLAR]
    assert total(statement) == 40 * DOLLAR
    assert [line.description for line in statement.lines[1:]] == ["partner (10 %)", "welcome"]
    assert [line.source_id for line in statement.lines[1:]] == ["dis_1000", "dis_5usd"]
    turned = charged(50, NOVEMBER, amount(5), percent(1_000))
    assert total(turned) == 40_500_000_000


@pytest.mark.parametrize(("scope", "taken_dollars"), [("usage", 3), ("fees", 2), ("all", 5)])
def test_a_discount_of_ten_percent_lowers_what_its_scope_names(scope, taken_dollars):
    plan = version(1, output_nanos=600, base_fee_nanos=20 * DOLLAR)
    use = used((50_000_000, plan))
    statement = state_of(terms(plan), use=use, discounts=[percent(1_000, scope=scope)])
    assert amounts(statement, "discount") == [-taken_dollars * DOLLAR]
    assert total(statement) == (50 - taken_dollars) * DOLLAR


def test_a_scope_finds_what_discounts_before_it_left():
    plan = version(1, output_nanos=600, base_fee_nanos=20 * DOLLAR)
    discounts = [amount(40, scope="usage"), percent(5_000), amount(99, scope="fees"), percent(10_000, scope="usage")]
    statement = state_of(terms(plan), use=used((50_000_000, plan)), discounts=discounts)
    assert amounts(statement, "discount") == [-30 * DOLLAR, -10 * DOLLAR, -10 * DOLLAR]
    assert total(statement) == 0


@pytest.mark.scenario(37)
def test_a_coupon_is_used_until_it_is_empty():
    coupon = amount(15, duration="once")
    november = charged(9, NOVEMBER, coupon)
    assert (amounts(november, "coupon"), total(november)) == ([-9 * DOLLAR], 0)
    december = charged(9, DECEMBER, coupon, before=november.state)
    assert (amounts(december, "coupon"), total(december)) == ([-6 * DOLLAR], 3 * DOLLAR)
    assert amounts(charged(9, JANUARY, coupon, before=december.state), "coupon") == []


@pytest.mark.scenario(37)
def test_a_coupon_that_expires_in_between_is_lost_and_the_next_invoice_says_so():
    coupon = amount(15, duration="once", ends=at("2026-12-05"))
    november = charged(9, NOVEMBER, coupon)
    december = charged(9, DECEMBER, coupon, before=november.state)
    assert total(december) == 9 * DOLLAR
    assert [line.description for line in december.lines if line.kind == "coupon"] == ["welcome: $6.00 expired"]
    assert amounts(charged(9, JANUARY, coupon, before=december.state), "coupon") == []


def test_a_percentage_of_a_number_of_periods_ends_after_them():
    coupon = percent(5_000, duration="periods", periods=2)
    november = charged(10, NOVEMBER, coupon)
    december = charged(10, DECEMBER, coupon, before=november.state)
    january = charged(10, JANUARY, coupon, before=december.state)
    assert [total(each) for each in (november, december, january)] == [5 * DOLLAR, 5 * DOLLAR, 10 * DOLLAR]


def test_a_percentage_of_one_charge_is_for_the_whole_first_period_with_a_charge():
    coupon = percent(5_000, duration="once")
    nothing = state_of(terms(version(1)), discounts=[coupon])
    december = charged(10, DECEMBER, coupon, before=nothing.state)
    assert total(december) == 5 * DOLLAR
    assert total(charged(10, JANUARY, coupon, before=december.state)) == 10 * DOLLAR


def test_an_amount_applies_once_in_a_period_that_has_two_invoices():
    first = charged(10, Period(NOVEMBER.start, day(16)), amount(3))
    second = charged(10, Period(day(16), NOVEMBER.end), amount(3), before=first.state)
    assert amounts(first, "discount") + amounts(second, "discount") == [-3 * DOLLAR]


def test_a_discount_applies_to_periods_that_it_sees_end():
    later = percent(1_000, begins=day(16))
    assert total(charged(10, NOVEMBER, later)) == 9 * DOLLAR
    assert total(charged(10, NOVEMBER, msgspec.structs.replace(later, begins=NOVEMBER.end))) == 10 * DOLLAR
    assert total(charged(10, NOVEMBER, msgspec.structs.replace(later, ends=day(29)))) == 10 * DOLLAR
    assert total(charged(10, NOVEMBER, msgspec.structs.replace(later, ends=NOVEMBER.end))) == 9 * DOLLAR


grants = st.builds(
    lambda number, hundredths, dollars, duration, scope: msgspec.structs.replace(
        percent(hundredths) if hundredths else amount(dollars),
        id=f"dis_{number}",
        duration=duration,
        scope=scope,
        periods=2 if duration == "periods" else None,
    ),
    st.integers(0, 10**6),
    st.integers(0, 10_000),
    st.integers(1, 50),
    st.sampled_from(["once", "periods", "forever"]),
    st.sampled_from(["usage", "fees", "all"]),
)


@given(
    st.lists(grants, max_size=5, unique_by=lambda each: each.id), st.lists(st.integers(0, 90), min_size=3, max_size=3)
)
def test_discounts_never_make_a_charge_negative_nor_give_more_than_their_amount(discounts, tokens):
    state = None
    given_nanos = dict.fromkeys((each.id for each in discounts), 0)
    for billed, used_tokens in zip((NOVEMBER, DECEMBER, JANUARY), tokens, strict=True):
        use = used((used_tokens * 1_000_000, WITH_FEE))
        statement = state_of(terms(WITH_FEE), billed, use, discounts=discounts, before=state)
        assert total(statement) >= 0
        for line in statement.lines:
            if line.source_id is not None:
                given_nanos[line.source_id] -= line.amount_nanos
        state = statement.state
    for each in discounts:
        if each.amount_nanos is not None:
            times = {"once": 1, "periods": 2, "forever": 3}[each.duration]
            assert 0 <= given_nanos[each.id] <= each.amount_nanos * times
