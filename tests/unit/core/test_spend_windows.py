"""The days and months of spending limits."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.spend_windows import window_at

ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "Z").astimezone(UTC)


@pytest.mark.scenario(93)
def test_a_day_in_tokyo_begins_at_15_utc():
    assert window_at("Asia/Tokyo", "day", at("2026-11-23T14:59:59")).end == at("2026-11-23T15:00:00")
    assert window_at("Asia/Tokyo", "day", at("2026-11-23T15:00:00")) == (
        at("2026-11-23T15:00:00"),
        at("2026-11-24T15:00:00"),
    )


def test_days_of_a_changing_clock_have_all_their_hours():
    start, end = window_at("America/New_York", "day", at("2026-11-01T12:00:00"))
    assert end - start == timedelta(hours=25)
    start, end = window_at("America/New_York", "month", at("2026-11-15T12:00:00"))
    assert (start, end) == (at("2026-11-01T04:00:00"), at("2026-12-01T05:00:00"))
    assert window_at("UTC", "month", at("2026-12-31T23:59:59")).end == at("2027-01-01T00:00:00")


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["day", "month"]),
    st.integers(1_577_836_800, 2_051_222_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_windows_tile_time(zone, window, instant):
    start, end = window_at(zone, window, instant)
    assert start <= instant < end
    assert window_at(zone, window, end).start == end
    assert window_at(zone, window, start) == (start, end)
