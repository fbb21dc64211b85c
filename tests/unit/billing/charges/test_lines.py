"""Invoice lines add up to the usage, and postings to zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from billing import ledger
from billing.charges.lines import DraftInvoiceLine, UsageTotal, UsedQuantity
from billing.charges.usage_charge import charge
from billing.prices.card import PriceCard
from billing.prices.price_book import PriceView
from billing.prices.quantities import QUANTITIES
from core.contracts.grants import Prices
from core.contracts.usage import UsageEvent
from core.money import NANOS_PER_CENT, cents_to_nanos, distribute_cents, round_to_cents
from core.periods import EPOCH
from core.rating import rate


def lines_of(totals: list[UsageTotal]) -> list[DraftInvoiceLine]:
    lines = charge(totals).lines
    cents = distribute_cents([line.amount_nanos for line in lines])
    return [replace(line, amount_cents=share) for line, share in zip(lines, cents, strict=True)]


def total_of(events: list[UsageEvent], prices: Prices, version: str = "pv_1") -> UsageTotal:
    costs = [rate(event, prices) for event in events]
    counts = {
        "uncached_input_tokens": [event.input_tokens - event.cached_tokens for event in events],
        "cached_input_tokens": [event.cached_tokens for event in events],
        "output_tokens": [event.output_tokens for event in events],
        "kv_page_seconds": [event.kv_page_ms for event in events],
    }
    return UsageTotal(
        base_model="base",
        adapter_id="ad_1",
        adapter_name="support-bot",
        version=PriceView(
            id=version, plan_id="pl", card=PriceCard.of_all_models(prices), effective_from=EPOCH, created_at=EPOCH
        ),
        used={
            kind: UsedQuantity(
                counted=sum(each),
                nanos=sum(getattr(cost, QUANTITIES[kind].amount) for cost in costs),
                requests=sum(map(bool, each)),
            )
            for kind, each in counts.items()
            if sum(each)
        },
    )


def event(cached: int, fresh: int, output: int, kv: int) -> UsageEvent:
    return UsageEvent(
        request_id="req",
        tenant_id="tn",
        key_id="key",
        base_model="base",
        adapter_id="ad_1",
        revision_id="rev_1",
        replica_id="rep",
        outcome="done",
        started_at_ms=0,
        settled_at_ms=1,
        input_tokens=cached + fresh,
        cached_tokens=cached,
        output_tokens=output,
        kv_page_ms=kv,
    )


count = st.integers(0, 100_000)
events = st.lists(st.builds(event, count, count, count, st.integers(0, 10**9)), min_size=1, max_size=20)
price = st.integers(0, 10**7)
prices = st.builds(Prices, input_nanos=price, cached_input_nanos=price, output_nanos=price, kv_page_second_nanos=price)


@given(st.lists(st.tuples(events, prices), max_size=4))
def test_lines_lose_no_token_and_no_nanodollar(groups):
    lines = lines_of([total_of(some, at, f"pv_{number}") for number, (some, at) in enumerate(groups)])
    every = [one for some, _ in groups for one in some]
    costs = [rate(one, at) for some, at in groups for one in some]
    assert sum(line.amount_nanos for line in lines) == sum(cost.amount_nanos for cost in costs)
    tokens = sum(line.quantity for line in lines if line.kind != "kv_page_seconds")
    assert tokens == sum(one.input_tokens + one.output_tokens for one in every)
    assert sum(line.amount_cents for line in lines) == round_to_cents(sum(line.amount_nanos for line in lines))
    for line in lines:
        assert line.quantity > 0
        assert line.request_count > 0
        assert abs(cents_to_nanos(line.amount_cents) - line.amount_nanos) < NANOS_PER_CENT
        if line.kind != "kv_page_seconds":
            assert line.amount_nanos == line.quantity * line.unit_price_nanos
        else:
            exact_thousandths = line.quantity * 1000 * line.unit_price_nanos
            assert 0 <= exact_thousandths - line.amount_nanos * 1000 <= 999 * line.request_count


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_what_is_earned_sums_to_zero(amount_nanos, other_nanos):
    legs = ledger.earned({"tn": amount_nanos, "tn_2": other_nanos})
    assert (len(legs), sum(legs.values())) == (3, 0)


def test_a_transfer_that_does_not_sum_to_zero_is_refused_before_the_database_sees_it():
    crooked = {ledger.AccountRef("usage_unbilled", "tn"): 2, ledger.AccountRef("revenue"): -1}
    with pytest.raises(AssertionError, match="sum to zero"):
        ledger.post(None, "usage", crooked)
