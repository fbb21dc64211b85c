"""Storage, pinned slots and cold loads cost their quantity times their price, exactly."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.charges.resource_charge import ResourceTotal, resource_charge
from billing.prices.card import ModelCardPrices, check
from core.errors import InvalidRequest
from tests.fixtures.terms import NOVEMBER, card, cents, version

PRICES = version(1, adapter_storage_gb_hour_nanos=100_000, pinned_slot_hour_nanos=50_000_000, cold_load_nanos=200_000)
OTHER = version(2, NOVEMBER.start, adapter_storage_gb_hour_nanos=70_003, pinned_slot_hour_nanos=7)
SCALES = {"adapter_storage": 3_600 * 10**9, "pinned_slots": 3_600_000, "cold_loads": 1}


def total(kind: str, units: int, *, at=PRICES, adapter: str = "ad_1", rank_class: int = 16, late_for=None):
    return ResourceTotal(kind, adapter, "support", "base", rank_class, late_for, at, units)


@pytest.mark.parametrize(
    ("kind", "units", "unit", "quantity", "nanos", "dollars"),
    [
        pytest.param(
            "adapter_storage", [500_000_000 * 3_600] * 720, "gb_hour", 360, 36_000_000, "0.04",
            marks=pytest.mark.scenario(13),
        ),
        pytest.param(
            "pinned_slots", [2 * 3_600_000] * 10 + [2 * 1_800_000], "slot_hour", 21, 1_050_000_000, "1.05",
            marks=pytest.mark.scenario(14),
        ),
        pytest.param("cold_loads", [30, 7], "load", 37, 7_400_000, "0.01", marks=pytest.mark.scenario(15)),
    ],
)  # fmt: skip
def test_a_resource_costs_its_hours(kind, units, unit, quantity, nanos, dollars):
    (line,) = resource_charge(total(kind, each) for each in units)
    assert (line.kind, line.unit, line.quantity, line.amount_nanos) == (kind, unit, quantity, nanos)
    assert (line.adapter_name, line.price_version_id, line.rank_class) == ("support", "pv_1", 16)
    assert cents(line.amount_nanos) == dollars


def test_what_has_no_price_has_no_line():
    assert resource_charge([total("cold_loads", 3, at=version(1))]) == []
    assert resource_charge([total("adapter_storage", 0)]) == []


def test_a_line_shows_nine_places_and_costs_its_exact_units():
    (line,) = resource_charge([total("pinned_slots", 1_200_001)])
    assert (line.quantity, line.amount_nanos) == (Decimal("0.333333612"), 50_000_000 * 1_200_001 // 3_600_000)
    (line,) = resource_charge([total("adapter_storage", 1)])
    assert (line.quantity, line.amount_nanos) == (Decimal("0.000000001"), 0)


def test_a_model_or_rank_class_may_have_prices_of_its_own():
    entry = ModelCardPrices(
        base_model="base", input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0,
        pinned_slot_hour_nanos=9,
    )  # fmt: skip
    big = msgspec.structs.replace(entry, rank_class=64, pinned_slot_hour_nanos=0, cold_load_nanos=5)
    priced = card(models=(entry, big), pinned_slot_hour_nanos=3, cold_load_nanos=2)
    assert [priced.resource_nanos("pinned_slots", *of) for of in (("base", 16), ("base", 64), ("else", 64))] == [
        9,
        0,
        3,
    ]
    assert [priced.resource_nanos("cold_loads", *of) for of in (("base", 16), ("base", 64), ("else", None))] == [
        2,
        5,
        2,
    ]
    assert priced.has_resource_prices
    assert not card().has_resource_prices


def test_prices_of_resources_are_optional_and_bounded():
    stored = msgspec.to_builtins(card())
    assert not [name for name in stored if "storage" in name or "slot" in name or "load" in name]
    with pytest.raises(InvalidRequest, match=r"prices\.cold_load_nanos"):
        check(card(cold_load_nanos=-1))
    with pytest.raises(InvalidRequest, match=r"prices\.adapter_storage_gb_hour_nanos"):
        check(card(adapter_storage_gb_hour_nanos=10**12 + 1))


TOTALS = st.lists(
    st.builds(
        total,
        st.sampled_from(sorted(SCALES)),
        st.integers(0, 10**16),
        at=st.sampled_from([PRICES, OTHER]),
        adapter=st.sampled_from(["ad_1", "ad_2"]),
        rank_class=st.sampled_from([0, 16]),
        late_for=st.sampled_from([None, NOVEMBER.start, NOVEMBER.start - timedelta(days=31)]),
    ),
    max_size=12,
)


@given(TOTALS, st.randoms())
def test_the_lines_are_the_same_for_any_order_and_any_division_of_hours(totals, random):
    parts = [each._replace(units=units) for each in totals for units in (each.units // 3, each.units - each.units // 3)]
    random.shuffle(parts)
    assert resource_charge(parts) == resource_charge(totals)


@given(TOTALS)
def test_a_line_is_cut_once_below_one_nanodollar(totals):
    lines = resource_charge(totals)
    exact = sum(
        Fraction(each.units * each.version.card.resource_nanos(each.kind, "base", None), SCALES[each.kind])
        for each in totals
    )
    assert 0 <= exact - sum(line.amount_nanos for line in lines) < max(1, 2 * len(totals))
    for line in lines:
        difference = Fraction(line.quantity) * line.unit_price_nanos - line.amount_nanos
        assert 0 <= difference <= 1 + Fraction(line.unit_price_nanos, 10**9)
