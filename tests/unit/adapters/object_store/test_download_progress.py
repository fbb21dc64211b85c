"""What is said of a download under way: its estimate, its silence, and its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.errors import DownloadStopped
from adapters.object_store import download_progress as module
from adapters.object_store.download_progress import Pace, Transfer, retry_after_s
from core.errors import Unavailable


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock as the module sees it, moved by hand."""

    class Clock:
        now = 100.0

        @staticmethod
        def monotonic() -> float:
            return Clock.now

    monkeypatch.setattr(module, "time", Clock)
    return Clock


def test_it_ends_in_time_and_when_told_to(clock):
    transfer = Transfer("x")
    transfer.check()
    transfer.begin(5)
    clock.now += 4.9
    transfer.check()
    clock.now += 0.2
    with pytest.raises(Unavailable, match="x could not be downloaded within 5 s"):
        transfer.check()
    transfer.stop.set()
    with pytest.raises(DownloadStopped):
        transfer.check()
    with pytest.raises(DownloadStopped):
        transfer.pause(60)


def test_it_has_stalled_when_no_byte_came_for_long_and_only_once_it_runs(clock):
    transfer = Transfer("x")
    clock.now += 50
    assert not transfer.is_stalled(1)
    transfer.begin()
    clock.now += 1.5
    assert transfer.is_stalled(1)
    transfer.add(1)
    assert not transfer.is_stalled(1)


def test_the_estimate_uses_its_own_rate_then_that_of_others_then_a_guess(clock):
    pace, transfer = Pace(), Transfer("x")
    assert pace.eta_s(transfer, rounds_ahead=0) == 2, "nothing is known"
    pace.learn(10_000, 4)
    assert pace.eta_s(transfer, rounds_ahead=2) == 4 + 2 * 4
    transfer.begin()
    clock.now += 1
    assert pace.eta_s(transfer, rounds_ahead=0) == 3
    transfer.total_bytes = 5_000
    assert pace.eta_s(transfer, rounds_ahead=0) == 2, "5,000 bytes at others' 2,500 a second"
    transfer.add(1_000)
    assert pace.eta_s(transfer, rounds_ahead=0) == 4, "4,000 left at its own 1,000 a second"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1e6)), max_size=5),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.floats(0, 1e6),
)
def test_estimates_are_never_negative_or_endless_and_callers_are_never_told_to_wait_long(learned, total, done, rounds):
    pace, transfer = Pace(), Transfer("x").begin()
    for size, seconds in learned:
        pace.learn(size, seconds)
    transfer.total_bytes = total
    transfer.add(done)
    eta = pace.eta_s(transfer, rounds_ahead=rounds)
    assert 0 <= eta < float("inf")
    assert 1 <= retry_after_s(eta, 30) <= 30
    assert retry_after_s(eta, 30) == int(retry_after_s(eta, 30))
