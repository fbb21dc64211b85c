"""The rate of requests by caller, in virtual time."""

import pytest

from core import request_rate
from core.request_rate import RequestRate


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_caller_may_use_a_minutes_requests_in_one_burst_and_then_the_rate(clock):
    rate = RequestRate(60, clock=clock)
    assert [rate.charge("a") for _ in range(60)] == [0] * 60
    assert rate.charge("a") == pytest.approx(1)
    clock.now_s += 1
    assert rate.charge("a") == 0
    assert rate.charge("a") == pytest.approx(1)


def test_a_refused_request_is_not_counted(clock):
    rate = RequestRate(60, burst_s=1, clock=clock)
    assert rate.charge("a") == 0
    assert [rate.charge("a") for _ in range(5)] == [pytest.approx(1)] * 5
    clock.now_s += 1
    assert rate.charge("a") == 0


def test_callers_have_buckets_of_their_own(clock):
    rate = RequestRate(60, burst_s=1, clock=clock)
    assert rate.charge("a") == rate.charge("b") == 0


def test_an_idle_caller_saves_at_most_the_burst(clock):
    rate = RequestRate(60, burst_s=2, clock=clock)
    clock.now_s += 3600
    assert [rate.charge("a") == 0 for _ in range(3)] == [True, True, False]


def test_the_number_of_callers_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(request_rate, "_CALLERS_MAX", 3)
    rate = RequestRate(60, clock=clock)
    for caller in "abcd":
        rate.charge(caller)
    assert list(rate._arrivals_s) == ["b", "c", "d"]
