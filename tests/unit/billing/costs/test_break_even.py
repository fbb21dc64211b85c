"""Own cost per million tokens beside outside prices."""

from datetime import date, timedelta

import pytest

from billing.costs.break_even import ChargedOutside, DatedOutsidePrice, break_even, saving
from billing.costs.rates import MS_PER_HOUR

TODAY = date(2026, 11, 24)
PRICE = DatedOutsidePrice(
    base_model="m",
    provider="p",
    as_of=TODAY,
    currency="usd",
    input_nanos_per_mtok=900_000_000,
    output_nanos_per_mtok=900_000_000,
    source="a page",
)


def compared(*prices: DatedOutsidePrice, model: str = "m"):
    return saving(prices, model=model, on=TODAY, input_tokens=4_200_000, output_tokens=840_000, own_nanos=2_500_000_000)


def changed(**changes) -> DatedOutsidePrice:
    return DatedOutsidePrice(**{name: getattr(PRICE, name) for name in PRICE.__struct_fields__} | changes)


@pytest.mark.scenario(181)
def test_break_even_at_full_and_at_half_use():
    found = break_even(total_nanos=120_000_000, tokens=1_800 * 60, busy_ms=60_000, paid_ms=120_000)
    assert found == {"full_use": 555_555_556, "observed": 1_111_111_111}


@pytest.mark.parametrize(
    ("hours", "tokens", "observed"), [(60, 100, 2_160_000_000_000_000), (24, 23, 3_756_521_739_130_435)]
)
def test_few_tokens_in_much_time_have_an_exact_break_even(hours, tokens, observed):
    used = {"tokens": tokens, "busy_ms": MS_PER_HOUR, "paid_ms": hours * MS_PER_HOUR}
    found = break_even(total_nanos=3_600_000_000 * hours, **used)
    assert found == {"observed": observed, "full_use": (3_600_000_000_000_000 + tokens // 2) // tokens}


def test_without_tokens_or_time_there_is_no_break_even():
    nothing = {"observed": None, "full_use": None}
    assert break_even(total_nanos=3_600_000_000, tokens=0, busy_ms=1, paid_ms=1) == nothing
    assert break_even(total_nanos=0, tokens=5, busy_ms=0, paid_ms=0) == nothing


@pytest.mark.scenario(182)
def test_the_saving_beside_an_outside_price():
    found = compared(PRICE)
    assert found.outside_nanos == 4_536_000_000
    assert round(found.saving_ppm / 1_000) == 449
    assert found.reaches_goal
    assert not saving(
        [PRICE], model="m", on=TODAY, input_tokens=1_000_000, output_tokens=0, own_nanos=541_000_000
    ).reaches_goal


@pytest.mark.scenario(183)
@pytest.mark.parametrize(
    ("prices", "status"),
    [
        ([], "missing"),
        ([changed(base_model="another")], "missing"),
        ([changed(as_of=TODAY + timedelta(days=1))], "missing"),
        ([changed(currency="eur")], "other_currency"),
        ([changed(as_of=TODAY - timedelta(days=91))], "stale"),
    ],
)
def test_a_price_that_cannot_be_used_is_named_and_is_not_zero(prices, status):
    found = compared(*prices)
    assert found.status == status
    assert (found.outside_nanos, found.saving_ppm, found.reaches_goal) == (None, None, None)


def test_ninety_days_are_not_stale_and_the_newest_price_counts():
    old = changed(as_of=TODAY - timedelta(days=90))
    assert compared(old).status == "current"
    assert compared(old, changed(as_of=TODAY - timedelta(days=1), input_nanos_per_mtok=0)).outside_nanos == 756_000_000


def test_an_own_cost_above_the_outside_price_is_a_negative_saving():
    found = saving([PRICE], model="m", on=TODAY, input_tokens=1_000_000, output_tokens=0, own_nanos=1_800_000_000)
    assert found.saving_ppm == -1_000_000


@pytest.mark.parametrize(
    ("tokens", "provider", "outside"), [(2_000_000, "acme-mini", 7_560_000_000), (0, "p", 4_536_000_000)]
)
def test_what_a_provider_charged_counts_before_a_price_that_was_entered(tokens, provider, outside):
    charged = ChargedOutside(base_model="acme-mini", nanos=3_000_000_000, tokens=tokens)
    counts = {"input_tokens": 4_200_000, "output_tokens": 840_000}
    found = saving([PRICE], model="m", on=TODAY, **counts, own_nanos=2_500_000_000, charged=charged)
    assert (found.status, found.provider, found.as_of, found.outside_nanos) == ("current", provider, TODAY, outside)
    assert found.saving_ppm == (outside - 2_500_000_000) * 1_000_000 // outside
