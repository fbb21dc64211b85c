"""Periods are half-open, follow one another without gap or overlap, and count in UTC."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from billing.subscriptions.calendar import INTERVALS, BillingCalendar
from core.errors import InvalidRequest
from core.periods import BUCKET_LENGTH, Period, aware, bucket_count, bucket_start, month

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


@pytest.mark.parametrize(
    "text",
    [
        "9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59Z", "9001-01-01T00:00:00Z", "9000-12-31T23:00:00-02:00",
        "1999-12-31T23:59:59Z", "2000-01-01T00:00:00+01:00", "0001-01-01T00:00:00+05:00",
    ],
)  # fmt: skip
def test_an_instant_that_no_period_can_hold_is_refused_with_its_field_and_the_fix(text):
    with pytest.raises(InvalidRequest, match="use an instant of the years 2000 to 9000") as refusal:
        aware(datetime.fromisoformat(text), "expires_at")
    assert refusal.value.param == "expires_at"


@given(st.datetimes(datetime(2000, 1, 1), datetime(9001, 1, 1) - datetime.resolution, timezones=st.just(UTC)))  # noqa: DTZ001 - given a zone
def test_every_instant_that_is_taken_lies_in_a_period_of_every_calendar(instant):
    at = aware(instant, "start")
    for interval in INTERVALS:
        for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
            period = BillingCalendar(interval=interval, zone=zone).period_at(at)
            assert period.start <= at < period.end
