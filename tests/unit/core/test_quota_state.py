"""The gateways' quota hash as numbers: the meaning of an arrival time, the end of a month, and expired holds."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from core.quota_state import FIELDS, MINUTE_US, month_ends_ms, read_level, without_expired

LIMIT = 600
NOW_US = int(datetime(2026, 3, 5, tzinfo=UTC).timestamp()) * 1_000_000


def level(**fields: bytes):
    return read_level([fields.get(name) for name in FIELDS], now_us=NOW_US)


def test_last_months_usage_counts_as_spending_but_not_for_this_month():
    old = level(month=b"2026-02", month_used=b"99", month_spent_nanos=b"7", spent_nanos=b"7")
    assert (old.tokens_this_month, old.spent_this_month_nanos, old.spent_nanos) == (0, 0, 7)
    now = level(month=b"2026-03", month_used=b"99", month_spent_nanos=b"7", spent_nanos=b"7")
    assert (now.tokens_this_month, now.spent_this_month_nanos) == (99, 7)


@given(st.integers(0, LIMIT))
def test_recent_requests_count_as_used(made):
    ahead = -(-made * MINUTE_US // LIMIT)
    used = level(requests_tat_us=str(NOW_US + ahead).encode()).used_of("requests", LIMIT)
    assert made <= used <= made + 1


@given(st.integers(-(10**18), 10**18))
def test_used_is_never_negative_and_never_above_the_limit(ahead):
    seen = level(tokens_tat_us=str(NOW_US + ahead).encode())
    assert 0 <= seen.used_of("tokens", LIMIT) <= LIMIT
    assert 0 <= seen.resets_ms("tokens") <= 60_000


def test_an_expired_hold_does_not_count_even_if_it_was_not_released():
    seen = level(concurrent=b"3", kv_pages=b"10", month_held=b"100", spend_held_nanos=b"50", gpu_held_us=b"9")
    seen = without_expired(seen, [[b"4", b"30", b"20", b"5", b"7"], [None] * 5])
    assert (seen.concurrent_requests, seen.kv_pages, seen.tokens_held, seen.spend_held_nanos) == (2, 6, 50, 45)
    assert seen.gpu_held_us == 2


def test_a_year_ends_with_its_december():
    december = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    assert month_ends_ms(int(december.timestamp() * 1e6)) == datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1000
