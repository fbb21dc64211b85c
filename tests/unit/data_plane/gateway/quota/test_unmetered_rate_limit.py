"""Each process rate-limits requests that use no quota, with a burst of five seconds' worth."""

import pytest

from core.errors import TooManyRequests
from data_plane.gateway.quota import unmetered_rate_limit
from data_plane.gateway.quota.unmetered_rate_limit import UnmeteredRateLimiter


@pytest.fixture
def at(monkeypatch):
    """Sets the clock."""
    now = [1000.0]
    monkeypatch.setattr(unmetered_rate_limit.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 1000.0 + seconds)


def charged_until_refused(bucket: UnmeteredRateLimiter, tenant_id: str = "tn_1") -> int:
    for count in range(1000):
        try:
            bucket.check(tenant_id)
        except TooManyRequests:
            return count
        bucket.charge(tenant_id)
    raise AssertionError("never refused")


def test_a_burst_of_five_seconds_passes_at_once_and_then_the_rate_holds(at):
    bucket = UnmeteredRateLimiter(8)
    assert charged_until_refused(bucket) == 41
    at(1)
    assert charged_until_refused(bucket) == 8
    at(100)
    assert charged_until_refused(bucket) == 41


def test_a_refused_tenant_gets_a_retry_time_and_others_are_not_refused(at):
    bucket = UnmeteredRateLimiter(2)
    charged_until_refused(bucket)
    with pytest.raises(TooManyRequests) as caught:
        bucket.check("tn_1")
    assert caught.value.retry_after_s == pytest.approx(0.5)
    bucket.check("tn_2")
    at(0.5)
    bucket.check("tn_1")


def test_the_number_of_remembered_tenants_is_bounded(at, monkeypatch):
    monkeypatch.setattr(unmetered_rate_limit, "_TENANTS_MAX", 3)
    bucket = UnmeteredRateLimiter(1)
    for number in range(5):
        bucket.charge(f"tn_{number}")
    assert list(bucket._arrivals) == ["tn_2", "tn_3", "tn_4"]
