"""Dollars in requests: exact, by rule, and one of both names at most."""

import msgspec
import pytest

from billing.prices.card import PriceCard, PriceTier, TieredPrice
from control_plane import dollars
from control_plane.credits.schemas import NewCredit
from control_plane.plans.schemas import LimitsBody
from control_plane.tenants.schemas import TenantPatch
from core.errors import InvalidRequest

NANOS = {"input_nanos": 150, "cached_input_nanos": 75, "output_nanos": 600, "kv_page_second_nanos": 1_000}
USD = {
    "input_usd_per_million": "0.15", "cached_input_usd_per_million": "0.075", "output_usd_per_million": 0.6,
    "kv_page_second_usd": "0.000001",
}  # fmt: skip


def read(body, body_type=PriceCard):
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return msgspec.json.decode(dollars.converted(content, body_type), type=body_type)


def test_a_card_in_dollars_is_the_card_in_nanodollars():
    own = {"base_model": "m", "rank_class": 8}
    tier = {"quantity": "output_tokens", "mode": "graduated"}
    given = USD | {
        "models": [own | USD], "base_fee_usd": "20", "adapter_storage_gb_hour_usd": "0.0001",
        "tiers": [tier | {"tiers": [{"unit_price_usd_per_million": "0.4", "up_to": None}]}],
    }  # fmt: skip
    wanted = NANOS | {
        "models": [own | NANOS], "base_fee_nanos": 20_000_000_000, "adapter_storage_gb_hour_nanos": 100_000,
        "tiers": [tier | {"tiers": [{"unit_price_nanos": 400, "up_to": None}]}],
    }  # fmt: skip
    card = read(given)
    assert card == read(wanted)
    shown = dollars.with_dollars(msgspec.to_builtins(card))
    assert (shown["input_usd_per_million"], shown["output_usd_per_million"], shown["base_fee_usd"]) == (
        "0.15",
        "0.60",
        "20",
    )
    assert read(shown) == card, "an answer can be sent back"
    assert card.tiers == (
        TieredPrice(
            quantity="output_tokens", mode="graduated", tiers=(PriceTier(unit_price_nanos=400, up_to=None),)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "body_type", "field", "units"),
    [
        ({"kind": "paid", "amount_usd": "12.34"}, NewCredit, "amount_nanos", 12_340_000_000),
        ({"kind": "promotional", "amount_usd": 10}, NewCredit, "amount_nanos", 10_000_000_000),
        (b'{"kind": "paid", "amount_usd": 0.07}', NewCredit, "amount_nanos", 70_000_000),
        ({"limits": {"spend_usd_per_month": "5"}}, TenantPatch, "limits.spend_nanos_per_month", 5_000_000_000),
        ({"limits": {"spend_usd_per_month": None}}, TenantPatch, "limits.spend_nanos_per_month", None),
    ],
)
def test_amounts_of_every_kind_are_read(body, body_type, field, units):
    found = read(body, body_type)
    for name in field.split("."):
        found = getattr(found, name)
    assert found == units


@pytest.mark.parametrize(
    "given",
    ["0.0001", "0.15 ", "$0.15", "1e-1", "0,15", ".15", "1.", "", "NaN", "Infinity", True, [], {}, "0.15\n", "١"],
)
def test_what_is_not_exact_is_refused_with_the_field_and_the_step(given):
    with pytest.raises(InvalidRequest, match=r"input_usd_per_million") as refused:
        read(NANOS | {"input_usd_per_million": given})
    assert refused.value.param == "input_usd_per_million"


def test_both_names_may_say_the_same_and_nothing_else():
    assert read(NANOS | USD) == read(NANOS)
    with pytest.raises(
        InvalidRequest, match=r"prices.models\[0\].output_usd_per_million: is not the same as"
    ) as refused:
        dollars.converted(
            msgspec.json.encode({"prices": {"models": [NANOS | {"output_usd_per_million": "0.601"}]}}),
            msgspec.defstruct("Body", [("prices", PriceCard)]),
        )
    assert refused.value.code == "invalid_dollars"


@pytest.mark.parametrize(
    ("answer", "dollars_in_it"),
    [
        ({"balance_nanos": -1_500_000_001}, {"balance_usd": "-1.500000001"}),
        (
            {"total_cents": 300, "alert_thresholds_nanos": [5, None]},
            {"total_usd": "3", "alert_thresholds_usd": ["0.000000005", None]},
        ),
        ({"spend_nanos_per_month": None}, {"spend_usd_per_month": None}),
        ({"amount_nanos": "7", "amount_usd": "of its own"}, {"amount_usd": "of its own"}),
        ({"by_kind_nanos": {"fee_nanos": 10_000_000}}, {"by_kind_nanos": {"fee_nanos": 10_000_000, "fee_usd": "0.01"}}),
    ],
)
def test_an_answer_has_dollars_beside_each_amount(answer, dollars_in_it):
    assert dollars.with_dollars([answer]) == [answer | dollars_in_it]


def test_what_is_no_amount_or_no_json_stays_for_the_decoder():
    assert dollars.converted(b'{"a_usd": ', PriceCard) == b'{"a_usd": '
    assert msgspec.json.decode(dollars.converted(b'{"spend_usd": 1}', LimitsBody)) == {"spend_usd": 1}
