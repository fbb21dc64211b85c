"""The state of a running download: its estimate, its stalls and its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.object_store import download_progress as module
from adapters.object_store.download_progress import Download, DownloadEstimates, DownloadStopped, retry_after_s
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


def test_a_download_ends_at_its_deadline_and_when_stopped(clock):
    download = Download("x")
    download.check()
    download.begin(5)
    clock.now += 4.9
    download.check()
    clock.now += 0.2
    with pytest.raises(Unavailable, match="x could not be downloaded within 5 s"):
        download.check()
    download.stop.set()
    with pytest.raises(DownloadStopped):
        download.check()
    with pytest.raises(DownloadStopped):
        download.pause(60)


def test_only_a_started_download_without_bytes_counts_as_stalled(clock):
    download = Download("x")
    clock.now += 50
    assert not download.is_stalled(1)
    download.begin()
    clock.now += 1.5
    assert download.is_stalled(1)
    download.add(1)
    assert not download.is_stalled(1)


def test_the_estimate_uses_its_own_rate_then_that_of_others_then_a_guess(clock):
    estimates, download = DownloadEstimates(), Download("x")
    assert estimates.eta_s(download, rounds_ahead=0) == 2, "nothing is known"
    estimates.record(10_000, 4)
    assert estimates.eta_s(download, rounds_ahead=2) == 4 + 2 * 4
    download.begin()
    clock.now += 1
    assert estimates.eta_s(download, rounds_ahead=0) == 3
    download.total_bytes = 5_000
    assert estimates.eta_s(download, rounds_ahead=0) == 2, "5,000 bytes at others' 2,500 a second"
    download.add(1_000)
    assert estimates.eta_s(download, rounds_ahead=0) == 4, "4,000 left at its own 1,000 a second"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1e6)), max_size=5),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.floats(0, 1e6),
)
def test_estimates_and_retry_times_are_bounded(learned, total, done, rounds):
    estimates, download = DownloadEstimates(), Download("x").begin()
    for size, seconds in learned:
        estimates.record(size, seconds)
    download.total_bytes = total
    download.add(done)
    eta = estimates.eta_s(download, rounds_ahead=rounds)
    assert 0 <= eta < float("inf")
    assert 1 <= retry_after_s(eta, 30) <= 30
    assert retry_after_s(eta, 30) == int(retry_after_s(eta, 30))
