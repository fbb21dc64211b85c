"""Which periods get an invoice: none over $0.00, and a scheduled one only from a cent on."""

import pytest

from billing.charges.lines import amount_line
from billing.invoices.carrying import Waiting, is_due


@pytest.mark.parametrize(
    ("own", "waits", "explicit", "scheduled"),
    [
        ([], [], False, False),
        ([0], [], False, False),  # free usage
        ([60_000_000, -60_000_000], [], False, False),  # a discount of all
        ([4_999_999], [], False, False),
        ([5_000_000], [], True, False),  # rounds to a cent, and may wait
        ([10_000_000], [], True, True),
        ([4_000_000], [4_000_000], True, False),
        ([5_000_000], [5_000_000], True, True),
        ([], [9_999_999], True, False),
        ([12_000_000], [-9_000_000], False, False),
        ([-60_000_000], [], True, True),  # the final invoice of a tenant that left
        ([-1_000_000], [], False, False),
    ],
)
def test_an_invoice_is_never_over_nothing(own, waits, explicit, scheduled):
    def lines(amounts):
        return [amount_line("base_fee", amount, description="a fee") for amount in amounts]

    waiting = Waiting(lines(waits), 0)
    assert is_due(lines(own), waiting, scheduled=False) is explicit
    assert is_due(lines(own), waiting, scheduled=True) is scheduled
