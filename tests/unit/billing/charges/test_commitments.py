"""A commitment is topped up when its period or its year ends, and never beyond."""

import pytest

from billing.charges.state import PeriodState
from billing.subscriptions.calendar import BillingCalendar
from billing.subscriptions.discounts import DiscountTerms
from core.periods import EPOCH, Period
from tests.fixtures.terms import DECEMBER, DOLLAR, NOVEMBER, amounts, day, state_of, terms, total, used, version

HUNDRED = {"commitment_nanos": 100 * DOLLAR}
CENT = 10_000_000


def costing(nanos: int, **card):
    """A plan at one cent a token, and usage of so many nanodollars."""
    plan = version(1, output_nanos=CENT, **card)
    return plan, used((nanos // CENT, plan))


@pytest.mark.scenario(32)
@pytest.mark.parametrize(
    ("usage_cents", "missing"), [(6_240, [3_760 * CENT]), (10_000, []), (10_001, [])], ids=["below", "at", "above"]
)
def test_a_commitment_charges_what_is_missing(usage_cents, missing):
    plan, use = costing(usage_cents * CENT, **HUNDRED)
    assert amounts(state_of(terms(plan), use=use), "commitment") == missing


def test_a_running_period_shows_no_true_up():
    plan, use = costing(DOLLAR, **HUNDRED)
    assert amounts(state_of(terms(plan), use=use, closing=False), "commitment") == []


@pytest.mark.scenario(33)
def test_a_tenant_that_ends_in_the_middle_is_committed_to_its_share():
    plan, use = costing(6_240 * CENT, **HUNDRED)
    ended = terms(plan, ended=day(16))
    first_half = Period(NOVEMBER.start, day(16))
    assert amounts(state_of(ended, first_half, use), "commitment") == []
    plan, use = costing(4_000 * CENT, **HUNDRED)
    assert amounts(state_of(ended, first_half, use), "commitment") == [10 * DOLLAR]


@pytest.mark.scenario(34)
def test_a_yearly_commitment_is_settled_on_the_twelfth_invoice_only():
    plan = version(1, output_nanos=CENT, commitment_nanos=1_200 * DOLLAR, commitment_interval="year")
    months = BillingCalendar()
    start, state, found = NOVEMBER.start, None, []
    for number in range(13):
        period = months.period_at(start)
        cents = 10_000 if number < 10 else 5_000
        statement = state_of(terms(plan), period, used((cents, plan)), before=state)
        found.append(amounts(statement, "commitment"))
        start, state = period.end, statement.state
    assert found == [[]] * 11 + [[100 * DOLLAR]] + [[]]


@pytest.mark.scenario(36)
def test_a_discount_is_taken_before_the_commitment():
    plan, use = costing(105 * DOLLAR, **HUNDRED)
    tenth = DiscountTerms(id="dis", name="partner", percent_hundredths=1_000, duration="forever", begins=EPOCH)
    statement = state_of(terms(plan), use=use, discounts=[tenth])
    assert amounts(statement, "commitment") == [5_500_000_000]
    assert total(statement) == 100 * DOLLAR


def test_a_period_in_two_invoices_is_topped_up_once():
    plan, use = costing(30 * DOLLAR, **HUNDRED)
    first = state_of(terms(plan), Period(NOVEMBER.start, day(11)), use)
    second = state_of(terms(plan), Period(day(11), NOVEMBER.end), use, before=first.state)
    assert amounts(first, "commitment") == []
    assert amounts(second, "commitment") == [40 * DOLLAR]
    assert amounts(state_of(terms(plan), DECEMBER, use, before=second.state), "commitment") == [70 * DOLLAR]


def test_a_negative_invoice_is_carried_to_the_next():
    advance = {"base_fee_when": "advance"}
    paid = version(1, base_fee_nanos=50 * DOLLAR, **advance)
    agreed = terms(paid, (day(16), version(2, output_nanos=CENT)))
    november = state_of(agreed)
    assert (amounts(november, "carried"), total(november)) == ([25 * DOLLAR], 0)
    _, use = costing(10 * DOLLAR)
    december = state_of(agreed, DECEMBER, use, before=november.state)
    assert (amounts(december, "carried"), total(december)) == ([-10 * DOLLAR], 0)
    assert december.state.credit_nanos == 15 * DOLLAR


def test_the_final_invoice_is_negative_where_more_is_owed_to_the_tenant_and_leaves_nothing():
    advance = {"base_fee_when": "advance"}
    agreed = terms(version(1, base_fee_nanos=50 * DOLLAR, **advance), ended=day(16))
    final = state_of(agreed, Period(NOVEMBER.start, day(16)))
    assert (amounts(final, "carried"), total(final), final.state.credit_nanos) == ([], -25 * DOLLAR, 0)
    before = PeriodState(period_start=NOVEMBER.start, credit_nanos=7 * DOLLAR)
    for billed in (Period(NOVEMBER.start, day(16)), Period(day(16), NOVEMBER.end)):
        for closing in (True, False):
            paid_out = state_of(agreed, billed, before=before, closing=closing)
            assert (amounts(paid_out, "carried"), paid_out.state.credit_nanos) == ([-7 * DOLLAR], 0)
