"""Which rate of a pool or a placement group applies to a replica, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.costs.rates import DatedRate, NoRate, charge, pieces, rates_of
from core import clock


def rate(from_ms: int, nanos_per_hour: int = 0, pool: str = "", **changes) -> DatedRate:
    named = {"base_model": "m", "rank_max": 16, "slot_nanos_per_hour": 0} | changes
    return DatedRate(**named, pool=pool, effective_from=clock.from_ms(from_ms), nanos_per_hour=nanos_per_hour)


def of(rates: list[DatedRate], pool: str) -> list[DatedRate]:
    return rates_of(rates, base_model="m", rank_max=16, pool=pool)


keys = st.tuples(st.integers(0, 50), st.sampled_from(["", "fast", "slow"]), st.sampled_from([8, 16]))
tables = st.sets(keys, max_size=12).map(
    lambda found: [rate(at, at, pool, rank_max=rank) for at, pool, rank in sorted(found, key=hash)]
)


@given(tables, st.sampled_from(["", "fast", "unpriced"]), st.integers(0, 50))
def test_exactly_one_rate_applies_at_each_instant_and_a_pools_comes_before_its_groups(rates, pool, now_ms):
    begun = [each for each in rates if each.rank_max == 16 and each.from_ms <= now_ms]
    expected = max(
        (each for each in begun if each.pool in ("", pool)), key=lambda each: (each.pool, each.from_ms), default=None
    )
    if expected is None:
        with pytest.raises(NoRate):
            charge(of(rates, pool), now_ms, now_ms + 1)
    else:
        assert list(pieces(of(rates, pool), now_ms, now_ms + 1)) == [(now_ms, now_ms + 1, expected)]


def test_a_later_rate_of_the_group_does_not_change_what_a_pool_with_a_rate_costs():
    rates = [rate(0, 1), rate(20, 1_000), rate(10, 100, "fast")]
    assert charge(of(rates, "fast"), 0, 30) == 10 * 1 + 20 * 100
    assert charge(of(rates, "slow"), 0, 30) == charge(of(rates, ""), 0, 30) == 20 * 1 + 10 * 1_000


def test_a_rate_of_another_base_model_or_rank_class_does_not_apply():
    assert of([rate(0, 1, "fast", rank_max=8), rate(0, 1, "fast", base_model="other")], "fast") == []
