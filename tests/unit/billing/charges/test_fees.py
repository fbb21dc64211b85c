"""Base fees are shared to the second, in advance and in arrears."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.charges.state import PeriodState
from billing.subscriptions.calendar import BillingCalendar
from core.periods import Period
from tests.fixtures.terms import (
    DECEMBER,
    DOLLAR,
    NOVEMBER,
    amounts,
    at,
    cents,
    day,
    state_of,
    terms,
    total,
    version,
)

TWENTY = {"base_fee_nanos": 20 * DOLLAR}
FIFTY = {"base_fee_nanos": 50 * DOLLAR}
ADVANCE = {"base_fee_when": "advance"}


@pytest.mark.scenario(31)
@pytest.mark.parametrize(("joined", "owed"), [(day(10), "14.00"), (day(10, hour=12), "13.67")])
@pytest.mark.parametrize("when", ["advance", "arrears"])
def test_a_tenant_that_joins_in_a_period_pays_its_share_of_the_fee(joined, owed, when):
    statement = state_of(terms(version(1, **TWENTY, base_fee_when=when), joined=joined))
    (share,) = [line for line in statement.lines if line.covers_from == joined]
    assert cents(share.amount_nanos) == owed
    assert share.covers_until == NOVEMBER.end


@pytest.mark.scenario(44)
def test_a_share_counts_the_hours_of_the_tenants_own_month():
    calendar = BillingCalendar(zone="America/New_York")
    november = calendar.period_at(day(16))
    joined = at("2026-11-16T05:00")
    statement = state_of(terms(version(1, **TWENTY), joined=joined, calendar=calendar), november)
    assert november.end - joined == timedelta(hours=360)
    assert cents(total(statement)) == "9.99"


@pytest.mark.scenario(51)
def test_a_change_of_plan_in_a_period_that_is_paid_gives_the_rest_back_and_charges_the_new_fee():
    changed = terms(version(1, **TWENTY, **ADVANCE), (day(16), version(2, **FIFTY, **ADVANCE)))
    statement = state_of(changed)
    assert amounts(statement, "proration") == [-10 * DOLLAR, 25 * DOLLAR]
    (ahead,) = [line for line in statement.lines if line.kind == "base_fee"]
    assert (ahead.amount_nanos, ahead.covers_from, ahead.covers_until) == (50 * DOLLAR, *DECEMBER)


@pytest.mark.scenario(51)
def test_a_change_of_plan_in_arrears_charges_each_fee_for_its_days():
    changed = terms(version(1, **TWENTY), (day(16), version(2, **FIFTY)))
    assert amounts(state_of(changed), "base_fee") == [10 * DOLLAR, 25 * DOLLAR]


@pytest.mark.scenario(52)
def test_a_change_at_the_end_of_a_period_prorates_nothing():
    changed = terms(version(1, **TWENTY), (NOVEMBER.end, version(2, **FIFTY)))
    assert amounts(state_of(changed), "base_fee", "proration") == [20 * DOLLAR]
    assert amounts(state_of(changed, DECEMBER), "base_fee", "proration") == [50 * DOLLAR]


@pytest.mark.scenario(54)
def test_of_two_changes_in_one_second_the_first_has_no_line():
    second = day(16)
    changed = terms(
        version(1, **TWENTY),
        (second + timedelta(milliseconds=200), version(2, base_fee_nanos=999 * DOLLAR)),
        (second + timedelta(milliseconds=700), version(3, **FIFTY)),
    )
    assert amounts(state_of(changed), "base_fee") == [10 * DOLLAR, 25 * DOLLAR]


@pytest.mark.scenario(57)
def test_a_tenant_that_ends_gets_back_what_it_paid_ahead_and_pays_nothing_after_it():
    ended = terms(version(1, **TWENTY, **ADVANCE), ended=day(16))
    assert amounts(state_of(ended, Period(NOVEMBER.start, day(16))), "proration") == [-10 * DOLLAR]
    supplementary = Period(day(16), day(20))
    assert state_of(ended, supplementary).lines == []


def test_a_new_version_with_the_same_fee_makes_no_further_line():
    changed = terms(version(1, **TWENTY), (day(16), version(2, **TWENTY, cold_load_nanos=5)))
    assert amounts(state_of(changed), "base_fee") == [20 * DOLLAR]


@given(
    st.lists(st.tuples(st.integers(0, 86_400 * 30), st.integers(0, 100 * DOLLAR)), min_size=1, max_size=5),
    st.sets(st.integers(1, 86_400 * 30 - 1), max_size=4),
    st.sampled_from(["advance", "arrears"]),
    st.booleans(),
)
def test_however_a_month_is_cut_into_invoices_its_fees_are_the_same(changes, cuts, when, joins):
    versions = [
        (NOVEMBER.start + timedelta(seconds=after), version(number, base_fee_nanos=nanos, base_fee_when=when))
        for number, (after, nanos) in enumerate(sorted(changes), start=2)
    ]
    joined = {"joined": day(3)} if joins else {}
    agreed = terms(version(1, base_fee_nanos=7 * DOLLAR, base_fee_when=when), *versions, **joined)
    borders = [NOVEMBER.start, *(NOVEMBER.start + timedelta(seconds=cut) for cut in sorted(cuts)), NOVEMBER.end]
    state, charged = PeriodState(), 0
    for start, end in pairwise(borders):
        statement = state_of(agreed, Period(start, end), before=state, closing=False)
        state, charged = statement.state, charged + total(statement)
    assert charged == total(state_of(agreed, closing=False))
