"""Which tax an invoice has, and to the cent what it amounts to: on the whole, on each line and on credit notes."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.tax.calculation import (
    REVERSE_CHARGE,
    RateInForce,
    TaxDecision,
    TaxLine,
    credited_tax,
    decide,
    line_shares,
    tax_lines,
)
from billing.tax.parties import Buyer, Parties, Seller
from core.money import tax_cents

DAY = date(2026, 11, 24)
GERMAN, FRENCH = RateInForce(name="USt", rate_ppm=190_000), RateInForce(name="TVA", rate_ppm=200_000)
RATES = {"DE": GERMAN, "FR": FRENCH, "US": None}
SELLER = Seller(legal_name="Tenora GmbH", country="DE", tax="fixed")


def decided(seller: Seller | None = SELLER, **buyer: object) -> TaxDecision:
    return decide(Parties(seller=seller, buyer=Buyer(legal_name="Acme", **buyer)), DAY, RATES)


@pytest.mark.scenario(124)
def test_a_tax_is_on_the_sum_and_shared_to_the_lines_by_largest_remainder():
    (tax,) = tax_lines(TaxDecision(rate=GERMAN), 6_500)
    assert (tax.base_cents, tax.tax_cents, tax.base_cents + tax.tax_cents) == (6_500, 1_235, 7_735)
    shares = line_shares([tax.tax_cents], [3_333, 3_333, -166])
    assert (shares, sum(shares)) == ([633, 633, -31], 1_235)


@pytest.mark.parametrize(
    ("buyer", "expected"),
    [
        ({"country": "DE"}, TaxDecision(rate=GERMAN)),
        ({"country": "DE", "vat_id": "DE136695976"}, TaxDecision(rate=GERMAN)),
        ({"country": "FR"}, TaxDecision(rate=FRENCH)),
        ({"country": "IT"}, TaxDecision(rate=GERMAN)),  # no rate of Italy is entered
        ({"country": "US"}, TaxDecision()),
        ({"country": "CH"}, TaxDecision()),
        ({}, TaxDecision(rate=GERMAN)),
    ],
)
def test_the_country_of_the_buyer_decides(buyer, expected):
    assert decided(**buyer) == expected


@pytest.mark.scenario(126)
def test_a_buyer_with_a_vat_id_of_another_eu_country_gets_a_reverse_charge():
    found = decided(country="FR", vat_id="FR40303265045")
    assert found == TaxDecision(rate=RateInForce(name="VAT", rate_ppm=0), note=REVERSE_CHARGE)
    assert [(line.tax_cents, line.note) for line in tax_lines(found, 10_000)] == [(0, REVERSE_CHARGE)]
    outside = Seller(legal_name="Tenora Inc", country="US", tax="fixed")
    assert decided(outside, country="FR", vat_id="FR40303265045").note is None


@pytest.mark.scenario(127)
@pytest.mark.parametrize(
    ("exempt_from", "exempt_until", "exempt"),
    [
        (date(2026, 11, 24), None, True),
        (date(2026, 11, 25), None, False),
        (date(2026, 1, 1), date(2026, 11, 24), False),
        (date(2026, 1, 1), date(2026, 11, 25), True),
        (None, None, False),
    ],
)
def test_an_exemption_goes_by_the_date_of_the_invoice(exempt_from, exempt_until, exempt):
    found = decided(country="DE", exempt_from=exempt_from, exempt_until=exempt_until)
    assert (tax_lines(found, 100) == []) == exempt


def test_a_seller_without_tax_has_none():
    assert decided(Seller(legal_name="Tenora", country="DE"), country="DE") == TaxDecision()
    assert decided(None, country="DE") == TaxDecision()


RATE = st.integers(0, 1_000_000)


@given(net=st.integers(1, 10**9), rate=RATE, cuts=st.lists(st.integers(1, 10**6), max_size=20))
def test_notes_for_the_whole_net_credit_exactly_the_whole_tax(net, rate, cuts):
    taxes = tax_lines(TaxDecision(rate=RateInForce(name="VAT", rate_ppm=rate)), net)
    credited = total = 0
    for wanted in [*cuts, net]:
        now = min(wanted, net - credited)
        (part,) = credited_tax(taxes, net_cents=net, credited_before=credited, credited_now=now)
        assert part.tax_cents >= 0
        credited, total = credited + now, total + part.tax_cents
    assert (credited, total) == (net, taxes[0].tax_cents)


@given(tax=st.integers(0, 10**8), lines=st.lists(st.integers(-(10**6), 10**8), min_size=1, max_size=50))
def test_the_shares_of_the_lines_are_the_whole_tax(tax, lines):
    if sum(lines) <= 0:
        tax = 0 if sum(lines) == 0 else -tax
    shares = line_shares([tax, tax], lines)
    assert sum(shares) == 2 * tax
    assert len(shares) == len(lines)


@pytest.mark.scenario(118)
def test_five_notes_of_a_fifth_credit_a_fifth_of_the_tax():
    taxes = [TaxLine(name="USt", rate_ppm=190_000, base_cents=5_000, tax_cents=950)]
    parts = [
        credited_tax(taxes, net_cents=5_000, credited_before=before, credited_now=1_000)
        for before in range(0, 5_000, 1_000)
    ]
    assert [[part.tax_cents for part in each] for each in parts] == [[190]] * 5


@pytest.mark.parametrize(("net_cents", "owed"), [(50, 10), (-50, -10), (49, 9), (150, 29)])
def test_half_a_cent_of_tax_is_rounded_away_from_zero(net_cents, owed):
    assert tax_cents(net_cents, 190_000) == owed
