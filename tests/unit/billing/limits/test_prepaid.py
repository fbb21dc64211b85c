"""Prepaid credit leaves room for the tax of what it pays, to the cent, whatever the rates, lots and usage."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.credits.burn_order import BurnableLot, DatedCharge, burn, without_rest
from billing.credits.dated_charges import scaled
from billing.limits.prepaid import gross_cents, net_cents_within, usable_nanos
from billing.tax.calculation import RateInForce, TaxDecision
from core.money import NANOS_PER_CENT, cents_to_nanos, round_to_cents

CENT = NANOS_PER_CENT
DOLLAR = 100 * CENT
NOW = datetime(2026, 11, 20, tzinfo=UTC)
BEFORE = NOW - timedelta(days=1)


def taxed(rate_ppm: int | None) -> TaxDecision:
    return TaxDecision(rate=None if rate_ppm is None else RateInForce(name="VAT", rate_ppm=rate_ppm))


def lot(number: int, kind: str, nanos: int, **changes) -> BurnableLot:
    values = {
        "id": f"crl_{number:02d}", "kind": kind, "priority": 50, "effective_from": NOW - timedelta(days=30),
        "expires_at": None, "models": (), "left_nanos": nanos,
    }  # fmt: skip
    return BurnableLot(**(values | changes))


def used(nanos: int, at: datetime = BEFORE) -> list[DatedCharge]:
    return [DatedCharge(at=at, model="small", amount_nanos=nanos)] if nanos else []


def usable(lots: Sequence[BurnableLot], charges: Sequence[DatedCharge], taxes: TaxDecision) -> int:
    return usable_nanos(lots, burn(lots, charges), taxes, NOW)


def due_cents(lots: Sequence[BurnableLot], charges: Sequence[DatedCharge], taxes: TaxDecision) -> int:
    """What an invoice of these charges leaves due: promotional credit before tax, paid credit after it."""
    net = burn(lots, charges).not_paid_by("promotional")
    total_cents = gross_cents(round_to_cents(sum(charge.amount_nanos for charge in net)), taxes)
    paid = burn([each for each in lots if each.kind == "paid"], scaled(net, cents_to_nanos(total_cents)))
    return total_cents - sum(use.amount_nanos for use in without_rest(paid.uses, CENT)) // CENT


@pytest.mark.parametrize(
    ("rate", "dollars", "cents"),
    [(None, 50, 5_000), (0, 50, 5_000), (190_000, 50, 4_202), (200_000, 12, 1_000), (149_750, 50, 4_349)],
)
def test_paid_credit_is_usable_up_to_the_net_whose_total_it_pays(rate, dollars, cents):
    lots = [lot(1, "paid", dollars * DOLLAR)]
    assert usable(lots, [], taxed(rate)) == cents * CENT
    assert due_cents(lots, used(cents * CENT), taxed(rate)) == 0
    assert due_cents(lots, used((cents + 1) * CENT), taxed(rate)) > 0


def test_usage_lowers_what_is_usable_by_its_own_amount_so_the_ceiling_stands_still():
    lots, vat = [lot(1, "paid", 50 * DOLLAR)], taxed(190_000)
    whole = usable(lots, [], vat)
    for nanos in (1, 169_500, CENT // 2, CENT, 1_234_567_891, whole):
        assert usable(lots, used(nanos), vat) == whole - nanos


def test_promotional_credit_is_usable_without_tax_where_it_burns_first():
    gift, paid = lot(1, "promotional", 10 * DOLLAR), lot(2, "paid", 50 * DOLLAR)
    assert usable([gift, paid], [], taxed(190_000)) == 10 * DOLLAR + 4_202 * CENT


def test_promotional_credit_behind_paid_credit_waits_for_the_invoice():
    gift, paid = lot(1, "promotional", 10 * DOLLAR), lot(2, "paid", 50 * DOLLAR, priority=0)
    assert usable([gift, paid], [], taxed(190_000)) == 4_202 * CENT
    assert usable([gift, paid], [], taxed(None)) == 60 * DOLLAR


def test_a_lot_that_ended_pays_the_tax_of_what_it_paid():
    ended = lot(1, "paid", 12 * DOLLAR, expires_at=NOW)
    assert usable([ended, lot(2, "paid", 24 * DOLLAR)], used(10 * DOLLAR), taxed(200_000)) == 20 * DOLLAR
    assert usable([ended, lot(2, "paid", 24 * DOLLAR)], used(12 * DOLLAR), taxed(200_000)) == 18 * DOLLAR


@given(st.none() | st.integers(0, 300_000), st.integers(0, 10**7))
def test_the_largest_net_is_found(rate, total_cents):
    found = net_cents_within(total_cents, taxed(rate))
    assert gross_cents(found, taxed(rate)) <= total_cents < gross_cents(found + 1, taxed(rate))


@given(
    st.lists(
        st.builds(
            lot, st.integers(1, 99), st.sampled_from(["paid", "promotional"]),
            st.integers(1, 400).map(lambda quarters: quarters * 25 * CENT), priority=st.sampled_from([0, 50]),
        ),
        max_size=4, unique_by=lambda each: each.id,
    ),
    st.none() | st.integers(0, 300_000),
    st.integers(0, 100 * DOLLAR),
)  # fmt: skip
def test_using_what_is_usable_after_any_usage_that_was_allowed_leaves_nothing_due(lots, rate, wanted):
    taxes = taxed(rate)
    before = used(min(wanted, usable(lots, [], taxes)))
    more = usable(lots, before, taxes)
    assert more >= 0
    assert due_cents(lots, [*before, *used(more, NOW)], taxes) == 0
