"""Storage, pinned slots and cold loads cost their quantity times their price."""

from decimal import Decimal

import pytest

from billing.charges.resources import ResourceTotal, resource_lines
from tests.fixtures.terms import cents, version

PRICES = version(1, adapter_storage_gb_hour_nanos=100_000, pinned_slot_hour_nanos=50_000_000, cold_load_nanos=200_000)


@pytest.mark.parametrize(
    ("kind", "quantities", "unit", "sum_of_them", "nanos"),
    [
        pytest.param(
            "adapter_storage", [Decimal("0.5")] * 720, "gb_hour", 360, 36_000_000, marks=pytest.mark.scenario(13)
        ),
        pytest.param(
            "pinned_slots", [Decimal(2)] * 10 + [Decimal(1)], "slot_hour", 21, 1_050_000_000,
            marks=pytest.mark.scenario(14),
        ),
        pytest.param("cold_loads", [Decimal(37)], "load", 37, 7_400_000, marks=pytest.mark.scenario(15)),
    ],
)  # fmt: skip
def test_a_resource_costs_its_hours(kind, quantities, unit, sum_of_them, nanos):
    totals = [ResourceTotal(kind, "ad_1", "support", PRICES, quantity) for quantity in quantities]
    (line,) = resource_lines(totals)
    assert (line.unit, line.quantity, line.amount_nanos) == (unit, sum_of_them, nanos)
    assert (line.adapter_name, line.price_version_id) == ("support", "pv_1")
    assert cents(line.amount_nanos) in ("0.04", "1.05", "0.01")


def test_a_resource_without_a_price_has_no_line():
    assert list(resource_lines([ResourceTotal("cold_loads", "", None, version(1), Decimal(3))])) == []
