"""A price card finds the price of each model, and the highest price that a request can have."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.prices.card import ModelCardPrices, PriceCard, PriceTier, TieredPrice, check
from core.contracts.grants import Prices
from core.errors import InvalidRequest
from core.rating import rate
from tests.fixtures.quota.levels import event

PRICES = {"input_nanos": 150, "cached_input_nanos": 75, "output_nanos": 600, "kv_page_second_nanos": 1_000}
GRADUATED = TieredPrice(
    quantity="output_tokens",
    mode="graduated",
    tiers=(PriceTier(up_to=1_000, unit_price_nanos=900), PriceTier(up_to=None, unit_price_nanos=400)),
)


def model(base_model: str, output_nanos: int, rank_class: int | None = None) -> ModelCardPrices:
    return ModelCardPrices(**(PRICES | {"output_nanos": output_nanos}), base_model=base_model, rank_class=rank_class)


def card(**more) -> PriceCard:
    return PriceCard(**PRICES, **more)


def refusal(wrong: PriceCard, **more) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(wrong, **more)
    assert refused.value.code == "invalid_price_card"
    return refused.value


def test_a_model_has_the_price_of_its_rank_class_else_its_own_else_that_of_all_models():
    priced = card(models=(model("large", 1_200), model("large", 2_000, rank_class=64)))
    outputs = [priced.listed(*each).output_nanos for each in (("large", 64), ("large", 16), ("large", None), ("x", 64))]
    assert outputs == [2_000, 1_200, 1_200, 600]


@pytest.mark.scenario(10)
def test_two_models_are_charged_by_their_own_prices():
    small = ModelCardPrices(
        base_model="small", input_nanos=100, cached_input_nanos=50, output_nanos=400, kv_page_second_nanos=0
    )
    large = ModelCardPrices(
        base_model="large", input_nanos=900, cached_input_nanos=450, output_nanos=1_200, kv_page_second_nanos=0
    )
    priced = card(models=(small, large))
    used = msgspec.structs.replace(
        event("req", "tn"), input_tokens=1_000, cached_tokens=0, output_tokens=1_000, kv_page_ms=0
    )
    assert [rate(used, priced.highest_prices(each, None)).amount_nanos for each in ("small", "large")] == [
        500_000,
        2_100_000,
    ]


def test_gateways_know_the_highest_prices_of_all_models_and_of_those_that_differ():
    tiers = (GRADUATED, TieredPrice(
        quantity="output_tokens", mode="package", base_model="large", package_units=3, package_nanos=10
    ))  # fmt: skip
    default, _, entries = card(models=(model("large", 1_200, rank_class=64),), tiers=tiers).grant_prices()
    assert default == Prices(**(PRICES | {"output_nanos": 900}))
    assert [(entry.base_model, entry.rank_class, entry.prices.output_nanos) for entry in entries] == [
        ("large", None, 4), ("large", 64, 4),
    ]  # fmt: skip


def test_a_card_with_everything_is_accepted():
    check(card(models=(model("large", 1),), tiers=(GRADUATED,)), base_models=["large", "small"])


@pytest.mark.scenario(12)
def test_a_card_needs_the_prices_of_models_without_an_entry():
    with pytest.raises(msgspec.ValidationError, match="output_nanos"):
        msgspec.convert({name: 1 for name in PRICES if name != "output_nanos"}, PriceCard)


@pytest.mark.scenario(12)
@given(
    entries=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, 16, 64])), unique=True, max_size=4),
    factor=st.sampled_from([None, 500]),
)
def test_every_model_rank_class_and_service_tier_has_a_price(entries, factor):
    """Whatever a card lists: its shape leaves no model out."""
    models = tuple(model(name, 100 + at, rank_class=rank) for at, (name, rank) in enumerate(entries))
    given_card = card(models=models, batch_factor_permille=factor)
    check(given_card, base_models=["a", "b"])
    for name, rank, tier in itertools.product(["a", "b", "not listed"], [None, 16, 64, 128], ["default", "flex"]):
        found = given_card.highest_prices(name, rank, tier)
        assert all(isinstance(getattr(found, each), int) for each in PRICES)
        at = next((entries.index(key) for key in ((name, rank), (name, None)) if key in entries), None)
        listed = PRICES["output_nanos"] if at is None else 100 + at
        assert found.output_nanos == (listed // 2 if factor and tier == "flex" else listed)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"models": (model("large", 1), model("large", 2))}, "prices.models[1]"),
        ({"models": (model("unknown", 1),)}, "prices.models[0].base_model"),
        ({"models": (model("large", -1),)}, "prices.models[0].output_nanos"),
        ({"tiers": (GRADUATED, GRADUATED)}, "prices.tiers[1]"),
        ({"tiers": (msgspec.structs.replace(GRADUATED, base_model="unknown"),)}, "prices.tiers[0].base_model"),
        ({"tiers": (msgspec.structs.replace(GRADUATED, tiers=()),)}, "prices.tiers[0].tiers"),
        ({"tiers": (msgspec.structs.replace(GRADUATED, package_units=5),)}, "prices.tiers[0].package_units"),
        ({"tiers": (TieredPrice(quantity="output_tokens", mode="package"),)}, "prices.tiers[0].package_units"),
    ],
)
def test_a_card_that_contradicts_itself_is_refused_by_field(more, param):
    assert refusal(card(**more), base_models=["large"]).param == param


@pytest.mark.parametrize(
    ("bounds", "param"),
    [
        ((1_000,), "prices.tiers[0].tiers[0].up_to"),
        ((None, None), "prices.tiers[0].tiers[0].up_to"),
        ((1_000, 1_000, None), "prices.tiers[0].tiers[1].up_to"),
        ((1_000, 500, None), "prices.tiers[0].tiers[1].up_to"),
    ],
)
def test_tiers_that_overlap_or_have_no_end_are_refused(bounds, param):
    tiers = tuple(PriceTier(up_to=bound, unit_price_nanos=1) for bound in bounds)
    assert refusal(card(tiers=(msgspec.structs.replace(GRADUATED, tiers=tiers),))).param == param


def test_flex_requests_pay_the_batch_factor_of_every_price():
    tiers = (GRADUATED, TieredPrice(
        quantity="output_tokens", mode="package", base_model="large", package_units=3, package_nanos=10
    ))  # fmt: skip
    priced = card(tiers=tiers, batch_factor_permille=500)
    check(priced)
    flex = priced.highest_prices("small", None, "flex")
    assert flex == Prices(input_nanos=75, cached_input_nanos=37, output_nanos=450, kv_page_second_nanos=500)
    assert priced.highest_prices("large", None, "flex").output_nanos == 2, (
        "a package costs 5, and a third of it at most 2"
    )
    granted = priced.grant_prices()
    assert granted.flex_prices == flex
    assert [entry.flex_prices for entry in granted.model_prices] == [priced.highest_prices("large", None, "flex")]


def test_a_card_without_a_batch_factor_has_one_price():
    assert card().highest_prices("small", None, "flex") == card().highest_prices("small", None)
    assert card(models=(model("large", 1),)).grant_prices().flex_prices is None


@pytest.mark.parametrize("factor", [0, -1, 1_001])
def test_a_batch_factor_is_a_part_of_the_price(factor):
    assert refusal(card(batch_factor_permille=factor)).param == "prices.batch_factor_permille"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"models": (model("large", 1),)}, "prices.models[0].output_nanos"),
        (
            {"tiers": (TieredPrice(quantity="output_tokens", mode="package", package_units=1, package_nanos=1),)},
            "prices.tiers[0].package_nanos",
        ),
    ],
)
def test_a_batch_factor_that_would_make_something_free_is_refused(more, named):
    refused = refusal(card(**more, batch_factor_permille=500))
    assert refused.param == "prices.batch_factor_permille"
    assert named in refused.message
