"""Periods are half-open, follow one another without gap or overlap, and count in UTC."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from billing.periods import (
    BUCKET_LENGTH,
    Period,
    aware,
    bucket_count,
    bucket_start,
    month,
)
from core.errors import InvalidRequest

instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - given a zone
buckets = st.sampled_from(["1m", "1h", "1d"])
NOV = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_month_is_a_utc_calendar_month():
    assert month("2026-11") == Period(NOV, datetime(2026, 12, 1, tzinfo=UTC))
    assert month("2026-12").end == datetime(2027, 1, 1, tzinfo=UTC)
    assert month("2028-02").end - month("2028-02").start == timedelta(days=29)


@pytest.mark.parametrize(
    "name", ["2026-13", "2026-00", "2026-1", "2026", "0000-01", "9999-12", "2026-11-01", "", "²026-11"]
)
def test_an_invalid_month_is_refused(name):
    with pytest.raises(InvalidRequest, match="YYYY-MM"):
        month(name)


@given(instants, buckets)
def test_every_instant_is_in_its_bucket(instant, bucket):
    start = bucket_start(instant, bucket)
    assert start <= instant < start + BUCKET_LENGTH[bucket]
    assert bucket_start(start, bucket) == start


@given(instants, st.integers(1, 10**12), buckets)
def test_the_count_is_the_number_of_buckets_touched(start, microseconds, bucket):
    end = start + timedelta(microseconds=microseconds)
    assume(end - start < 500 * BUCKET_LENGTH[bucket])
    touched, at = 0, bucket_start(start, bucket)
    while at < end:
        touched, at = touched + 1, at + BUCKET_LENGTH[bucket]
    assert bucket_count(Period(start, end), bucket) == touched


def test_an_instant_needs_an_offset_and_becomes_utc():
    with pytest.raises(InvalidRequest) as refusal:
        aware(datetime(2026, 11, 1), "start")  # noqa: DTZ001 - naive on purpose
    assert refusal.value.param == "start"
    east = datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert aware(east, "start") == NOV
    assert aware(east, "start").utcoffset() == timedelta(0)
