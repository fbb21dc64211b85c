"""The gateways' quota hash as a view: what a theoretical arrival time means, and when a month is over."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from control_plane.usage.quota import MINUTE_US, view
from core.contracts import Limits
from tests.fixtures.control_api import LIMITS

LIMIT = Limits(**LIMITS)
NOW_US = int(datetime(2026, 3, 5, tzinfo=UTC).timestamp()) * 1_000_000
EMPTY = dict.fromkeys(
    ["concurrent", "kv_pages", "requests_tat_us", "tokens_tat_us", "month", "month_used", "month_held"]
)


def seen(**fields: bytes):
    return view(EMPTY | fields, now_us=NOW_US, limits=LIMIT, adapters=0)


def test_a_tenant_that_never_called_has_used_and_holds_nothing():
    quota = seen()
    assert (quota.used.requests_per_minute, quota.used.tokens_per_month, quota.held.kv_pages) == (0, 0, 0)


def test_last_months_tokens_are_not_this_months():
    assert seen(month=b"2026-02", month_used=b"99").used.tokens_per_month == 0
    assert seen(month=b"2026-03", month_used=b"99").used.tokens_per_month == 99


def test_numbers_that_lua_wrote_as_floats_are_read():
    assert seen(month_held=b"1e3", concurrent=b"2.0").held.concurrent_requests == 2


@given(st.integers(0, LIMITS["requests_per_minute"]))
def test_requests_just_made_are_requests_used(made):
    ahead = -(-made * MINUTE_US // LIMITS["requests_per_minute"])
    used = seen(requests_tat_us=str(NOW_US + ahead).encode()).used.requests_per_minute
    assert made <= used <= made + 1


@given(st.integers(-(10**18), 10**18))
def test_used_is_never_negative_and_never_above_the_limit(ahead):
    used = seen(tokens_tat_us=str(NOW_US + ahead).encode()).used.tokens_per_minute
    assert 0 <= used <= LIMITS["tokens_per_minute"]
