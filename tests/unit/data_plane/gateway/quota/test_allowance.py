"""The levels and costs of a caller, and the usage that quotas count: its price equals the bill's."""

import functools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core import redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, Prices, TenantGrant
from core.contracts.usage import UsageEvent
from core.kv_pages import page_ms
from core.rating import rate
from data_plane.gateway.quota.allowance import NO_LIMIT, PlatformLimits, allowance
from data_plane.gateway.quota.consumption import used_by
from tests.fixtures.gateway.published import AMPLE

nanos = st.integers(0, 10_000)
prices = st.builds(Prices, input_nanos=nanos, cached_input_nanos=nanos, output_nanos=nanos, kv_page_second_nanos=nanos)


def tenant(given: Prices | None = None, **limits: object) -> TenantGrant:
    limits = msgspec.structs.replace(AMPLE, **limits)
    return TenantGrant(tenant_id="tn_1", status="active", limits=limits, prices=given)


def key(limits: KeyLimits | None = None) -> KeyGrant:
    return KeyGrant(key_id="key_1", tenant_id="tn_1", scopes=(), limits=limits)


def used_event(**changes: int) -> UsageEvent:
    values = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "kv_page_ms": 0} | changes
    return UsageEvent(
        request_id="req_1", tenant_id="tn_1", key_id="key_1", base_model="m", adapter_id=None, revision_id=None,
        replica_id="rep_1", outcome="done", started_at_ms=0, settled_at_ms=0, **values,
    )  # fmt: skip


def test_platform_and_key_are_levels_only_where_they_have_limits():
    free = functools.partial(allowance, prices=None, longest_ms=1)
    assert [level.name for level in free(tenant(), key(), PlatformLimits()).levels] == ["tenant"]
    assert len(free(tenant(), key(KeyLimits()), PlatformLimits()).levels) == 1
    all_three = free(tenant(), key(KeyLimits(tokens_per_month=9)), PlatformLimits(kv_pages=5))
    assert [level.name for level in all_three.levels] == ["platform", "tenant", "key"]
    assert [level.quota for level in all_three.levels] == [
        redis_keys.PLATFORM_QUOTA, redis_keys.tenant_quota("tn_1"), redis_keys.key_quota("tn_1", "key_1")
    ]  # fmt: skip
    assert (all_three.levels[2].tokens_per_month, all_three.levels[2].kv_pages) == (9, NO_LIMIT)


@given(
    prices=prices, prompt=st.integers(0, 500), output=st.integers(0, 500), cached=st.integers(0, 500),
    more=st.integers(0, 100), ran_ms=st.integers(0, 7000),
)  # fmt: skip
def test_no_request_costs_more_than_its_hold(prices, prompt, output, cached, more, ran_ms):
    """For any cached part of the prompt, any number of tokens and any run time below the longest."""
    costs = allowance(tenant(prices), key(), PlatformLimits(), prices=prices, longest_ms=7000).costs
    pages = page_ms(prompt + output + more, 1)
    held = prompt * costs.input_nanos + (output + more) * costs.output_nanos + pages * costs.page_nanos
    event = used_event(
        input_tokens=prompt, cached_tokens=min(cached, prompt), output_tokens=output,
        kv_page_ms=page_ms(prompt + output, ran_ms),
    )  # fmt: skip
    cost = used_by(event, tenant(prices)).cost_nanos
    assert cost == rate(event, prices).amount_nanos <= held


def test_cached_tokens_count_where_the_plan_says_so():
    event = used_event(input_tokens=100, cached_tokens=60, output_tokens=7)
    assert used_by(event, tenant()).input_tokens == 100
    assert used_by(event, tenant(count_cached_tokens=False)).input_tokens == 40
    assert used_by(event, tenant(count_cached_tokens=False)).output_tokens == 7
