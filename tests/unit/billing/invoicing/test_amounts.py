"""An invoice is rounded once: its net to the cent, then each tax; lines and credits share the net exactly."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.charges.lines import DraftInvoiceLine
from billing.credits.views import CreditUse
from billing.invoicing.finalizing import Amounts, _legs, amounts
from billing.tax.calculation import RateInForce, TaxDecision
from core.money import cents_to_nanos

NO_TAX, VAT = TaxDecision(), TaxDecision(rate=RateInForce(name="VAT", rate_ppm=190_000))


def line(nanos: int) -> DraftInvoiceLine:
    return DraftInvoiceLine(
        kind="output_tokens", base_model="base", rank_class=None, adapter_id=None, adapter_name=None,
        price_version_id="pv_1", late_for=None, unit="token", quantity=Decimal(1), unit_price_nanos=nanos,
        amount_nanos=nanos, request_count=1,
    )  # fmt: skip


def made(lines: list[int], credits_nanos: tuple[int, ...] = (), tax: TaxDecision = NO_TAX) -> Amounts:
    uses = [
        CreditUse(lot_id=f"lot_{number}", kind="promotional", amount_nanos=nanos)
        for number, nanos in enumerate(credits_nanos)
    ]
    return amounts([line(nanos) for nanos in lines], uses, tax)


@pytest.mark.scenario(104)
def test_lines_share_the_cents_by_largest_remainder():
    found = made([335_000_000, 335_000_000, 330_000_000])
    assert [each.amount_cents for each in found.lines] == [34, 33, 33]
    assert found.net_cents == 100


@pytest.mark.scenario(102, 103)
@pytest.mark.parametrize(("nanos", "cents"), [(5_100_000, 510), (4_900_000, 490)])
def test_a_thousand_small_lines_are_rounded_once(nanos, cents):
    found = made([nanos] * 1_000)
    assert found.net_cents == cents
    assert [each.amount_cents for each in found.lines] == [1] * cents + [0] * (1_000 - cents)


@pytest.mark.scenario(105)
@pytest.mark.parametrize(
    ("nanos", "cents"), [(125_000_000, 13), (-125_000_000, -13), (124_999_999, 12), (0, 0), (4_999_999, 0)]
)
def test_the_total_is_rounded_to_the_cent_and_halves_away_from_zero(nanos, cents):
    assert made([nanos]).net_cents == cents


@pytest.mark.scenario(88)
def test_promotional_credit_lowers_the_net_and_its_tax():
    found = made([30_000_000_000], (10_000_000_000,), VAT)
    assert (found.net_cents, found.tax_cents) == (2_000, 380)
    assert [each.amount_cents for each in found.credits] == [1_000]


LINES = st.lists(st.integers(-(10**10), 10**12), min_size=1, max_size=40)
CREDITS = st.lists(st.integers(1, 10**9), max_size=5)


@given(lines=LINES, credits_nanos=CREDITS)
def test_lines_and_credits_are_the_net_and_each_is_within_a_cent(lines, credits_nanos):
    found = made(lines, tuple(credits_nanos), VAT)
    assert abs(found.net_cents * 10_000_000 - (found.amount_nanos - found.credited_nanos)) <= 5_000_000
    assert [tax.base_cents for tax in found.taxes] == [found.net_cents]
    for each in [*found.lines, *found.credits]:
        assert abs(each.amount_cents * 10_000_000 - each.amount_nanos) < 10_000_000


@given(lines=LINES, credits_nanos=CREDITS, tax=st.sampled_from([NO_TAX, VAT]))
def test_what_was_used_becomes_a_receivable_of_whole_cents_with_tax_and_a_rounding(lines, credits_nanos, tax):
    found = made(lines, tuple(credits_nanos), tax)
    legs = _legs("tn", found)
    assert sum(legs.values()) == 0
    moved = {account.kind: nanos for account, nanos in legs.items()}
    assert moved["usage_unbilled"] == sum(credits_nanos) - sum(lines)
    assert moved["receivable"] == cents_to_nanos(found.net_cents + found.tax_cents)
    assert moved.get("tax_payable", 0) == -cents_to_nanos(found.tax_cents)
    assert abs(moved["rounding"]) <= 5_000_000
