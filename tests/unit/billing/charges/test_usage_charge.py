"""What tiers and packages cost, over all adapters of a period."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.charges.lines import UsageTotal, UsedQuantity
from billing.charges.usage_charge import charge
from billing.prices.card import PriceTier, TieredPrice
from billing.prices.price_book import PriceView
from core.periods import EPOCH
from tests.fixtures import terms

STEPS = (
    PriceTier(up_to=1_000_000, unit_price_nanos=600),
    PriceTier(up_to=10_000_000, unit_price_nanos=500),
    PriceTier(up_to=None, unit_price_nanos=400),
)
DOLLAR = 1_000_000_000


def tiered(mode: str, **more) -> TieredPrice:
    tiers = {} if mode == "package" else {"tiers": STEPS}
    return TieredPrice(**({"quantity": "output_tokens", "mode": mode} | tiers | more))


def version(*tiers: TieredPrice, number: int = 1) -> PriceView:
    return terms.version(number, EPOCH + timedelta(days=number), tiers=tiers)


def used(output_tokens: int, price: PriceView, *, late: bool = False, **more: str) -> UsageTotal:
    total = terms.outputs(output_tokens, price, **more)
    return msgspec.structs.replace(total, late_for=terms.NOVEMBER.start if late else None)


def cost(total: int, price: TieredPrice) -> int:
    return sum(line.amount_nanos for line in charge([used(total, version(price))]).lines)


@pytest.mark.scenario(19)
def test_graduated_tiers_charge_each_unit_by_its_tier():
    lines = charge([used(12_000_000, version(tiered("graduated")))]).lines
    assert [(line.tier, int(line.quantity), line.unit_price_nanos) for line in lines] == [
        (1, 1_000_000, 600), (2, 9_000_000, 500), (3, 2_000_000, 400),
    ]  # fmt: skip
    assert sum(line.amount_nanos for line in lines) == 5.9 * DOLLAR


@pytest.mark.scenario(20)
@pytest.mark.parametrize(
    ("tokens", "nanos"), [(12_000_000, 4_800_000_000), (10_000_000, 5_000_000_000), (10_000_001, 4_000_000_400)]
)
def test_volume_tiers_charge_all_units_by_the_tier_of_the_total(tokens, nanos):
    assert cost(tokens, tiered("volume")) == nanos


@pytest.mark.scenario(21)
@pytest.mark.parametrize(("tokens", "packages"), [(250_001, 3), (100_000, 1), (1, 1)])
def test_each_begun_package_costs_its_price(tokens, packages):
    price = version(tiered("package", package_units=100_000, package_nanos=50_000_000))
    (line,) = charge([used(tokens, price)]).lines
    assert (line.unit, int(line.quantity), line.amount_nanos) == ("package", packages, packages * 50_000_000)


def test_no_usage_costs_no_package():
    assert cost(0, tiered("package", package_units=100_000, package_nanos=50_000_000)) == 0


@pytest.mark.scenario(22)
@pytest.mark.parametrize(("tokens", "nanos"), [(100_000, 0), (100_001, 600)])
def test_a_first_tier_that_is_free_is_included_usage(tokens, nanos):
    steps = (PriceTier(up_to=100_000, unit_price_nanos=0), PriceTier(up_to=None, unit_price_nanos=600))
    assert cost(tokens, tiered("graduated", tiers=steps)) == nanos


@pytest.mark.scenario(26)
def test_tiers_count_over_all_adapters_and_only_the_models_they_name():
    price = version(tiered("graduated", base_model="base"))
    totals = [
        used(700_000, price), used(500_000, price, adapter_id="ad_1"), used(9_000_000, price, base_model="other"),
    ]  # fmt: skip
    lines = charge(totals).lines
    assert [(line.tier, line.base_model, int(line.quantity)) for line in lines] == [
        (None, "other", 9_000_000), (1, "base", 1_000_000), (2, "base", 200_000),
    ]  # fmt: skip


def test_page_seconds_have_tiers_too():
    steps = (PriceTier(up_to=1, unit_price_nanos=1_001), PriceTier(up_to=None, unit_price_nanos=1))
    price = version(tiered("graduated", quantity="kv_page_seconds", tiers=steps))
    lines = charge([UsageTotal(base_model="base", version=price, used={"kv_page_seconds": UsedQuantity(2_500)})]).lines
    assert [(str(line.quantity), line.amount_nanos) for line in lines] == [("1", 1_001), ("1.5", 1)]


def test_a_new_price_version_counts_on_from_where_the_old_one_ended_and_late_usage_comes_last():
    cheaper = tuple(msgspec.structs.replace(step, unit_price_nanos=step.unit_price_nanos // 10) for step in STEPS)
    before, after = version(tiered("graduated")), version(tiered("graduated", tiers=cheaper), number=2)
    lines = charge([used(900_000, before), used(300_000, after), used(50_000, before, late=True)]).lines
    assert [(line.price_version_id, line.tier, int(line.quantity), line.late_for is not None) for line in lines] == [
        ("pv_1", 1, 900_000, False), ("pv_2", 1, 100_000, False), ("pv_2", 2, 200_000, False),
        ("pv_1", 2, 50_000, True),
    ]  # fmt: skip


@pytest.mark.scenario(24)
@given(
    st.lists(st.integers(1, 3_000_000), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
    st.sampled_from(["graduated", "volume"]),
)
def test_the_charge_does_not_depend_on_the_order_of_usage(quantities, order, mode):
    price = version(tiered(mode))
    totals = [used(quantity, price, adapter_id=f"ad_{number:02d}") for number, quantity in enumerate(quantities)]
    shuffled = order.sample(totals, len(totals))
    assert charge(totals) == charge(shuffled)
    assert sum(line.amount_nanos for line in charge(totals).lines) == cost(sum(quantities), tiered(mode))
    assert sum(int(line.quantity) for line in charge(totals).lines) == sum(quantities)


MODES = {
    "graduated": tiered("graduated"),
    "volume": tiered("volume"),
    "package": tiered("package", package_units=400_000, package_nanos=50_000_000),
}


def invoiced(price: TieredPrice, *parts: int):
    """The lines of each invoice of one period that is cut into parts."""
    versions, billed, made = {"pv_1": version(price)}, (), []
    for quantity in parts:
        lines, billed = charge([used(quantity, versions["pv_1"])], None, billed, versions)
        made.append(lines)
    return made


@given(st.lists(st.integers(0, 7_000_000), min_size=2, max_size=5), st.sampled_from(sorted(MODES)))
def test_a_period_costs_the_same_however_it_is_cut_into_invoices(parts, mode):
    lines = [line for invoice in invoiced(MODES[mode], *parts) for line in invoice]
    assert sum(line.amount_nanos for line in lines) == cost(sum(parts), MODES[mode])
    assert all(line.quantity * line.unit_price_nanos == line.amount_nanos for line in lines)
    tokens = sum(line.used_units or line.quantity for line in lines if line.kind == "output_tokens")
    assert tokens == sum(parts)


def test_the_next_invoice_of_a_period_goes_on_in_the_tier_of_the_one_before():
    _, second = invoiced(MODES["graduated"], 9_500_000, 1_000_000)
    assert [(line.tier, int(line.quantity), line.amount_nanos) for line in second] == [
        (2, 500_000, 250_000_000), (3, 500_000, 200_000_000),
    ]  # fmt: skip


def test_a_begun_package_is_not_charged_again_by_the_next_invoice_of_the_period():
    _, second, third = invoiced(MODES["package"], 500_000, 200_000, 200_000)
    assert [(line.unit, int(line.quantity), line.amount_nanos) for line in second] == [("token", 200_000, 0)]
    assert [(line.unit, int(line.used_units or line.quantity), line.amount_nanos) for line in third] == [
        ("token", 100_000, 0), ("package", 100_000, 50_000_000),
    ]  # fmt: skip


def test_a_volume_price_that_the_next_invoice_reaches_is_charged_for_the_units_before():
    _, second = invoiced(MODES["volume"], 9_000_000, 2_000_000)
    assert [(line.kind, line.amount_nanos) for line in second] == [
        ("proration", 9_000_000 * (400 - 500)), ("output_tokens", 2_000_000 * 400),
    ]  # fmt: skip
