"""When an invoice between two parties is due, and what it lacks."""

from datetime import date

import pytest

from billing.tax.parties import Buyer, Parties, Seller

WHOLE = {"legal_name": "A", "address": ("Weg 1",), "country": "DE"}


@pytest.mark.parametrize(
    ("seller", "buyer", "due"),
    [
        (None, None, date(2026, 12, 10)),
        (Seller(**WHOLE, payment_days=30), None, date(2026, 12, 26)),
        (Seller(**WHOLE, payment_days=30), Buyer(**WHOLE, payment_days=0), date(2026, 11, 26)),
    ],
)
def test_the_days_of_the_buyer_come_before_those_of_the_seller(seller, buyer, due):
    assert Parties(seller=seller, buyer=buyer).due_on(date(2026, 11, 26)) == due


@pytest.mark.parametrize(
    ("seller", "buyer", "parties"),
    [
        (None, None, ["seller", "buyer"]),
        (Seller(**WHOLE), Buyer(legal_name="Acme", country="DE"), ["buyer"]),
        (Seller(legal_name="Tenora", address=("Weg 1",)), Buyer(**WHOLE), ["seller"]),
        (Seller(**WHOLE), Buyer(**WHOLE), []),
    ],
)
def test_parties_need_a_name_an_address_and_a_country(seller, buyer, parties):
    warnings = Parties(seller=seller, buyer=buyer).warnings()
    assert [warning.partition(":")[0] for warning in warnings] == parties
    assert all("PUT /api/v1/" in warning for warning in warnings)
