"""Billing periods tile time without gap or overlap, in every zone and for every interval."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.subscriptions.calendar import BillingCalendar, CalendarFrom, CalendarHistory
from core.periods import EPOCH, Period
from core.spend_windows import window_at

ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")


def always(calendar: BillingCalendar) -> CalendarHistory:
    return CalendarHistory([CalendarFrom(EPOCH, calendar)])


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.scenario(39)
def test_a_month_in_new_york_begins_and_ends_at_its_local_midnights():
    period = BillingCalendar(zone="America/New_York").period_at(at("2026-11-15"))
    assert period == Period(at("2026-11-01T04:00"), at("2026-12-01T05:00"))
    assert period.end - period.start == timedelta(hours=721)


@pytest.mark.scenario(40)
def test_a_month_with_a_clock_change_in_berlin_has_an_hour_less():
    period = BillingCalendar(zone="Europe/Berlin").period_at(at("2026-03-15"))
    assert period == Period(at("2026-02-28T23:00"), at("2026-03-31T22:00"))
    assert period.end - period.start == timedelta(hours=743)


@pytest.mark.scenario(42)
def test_an_anniversary_on_the_31st_ends_on_the_last_day_of_shorter_months():
    calendar = BillingCalendar(anchor=date(2027, 1, 31))
    ends = list(always(calendar).ends_between(at("2027-01-31"), at("2027-06-01")))
    assert [end.date().isoformat() for end in ends] == ["2027-02-28", "2027-03-31", "2027-04-30", "2027-05-31"]


@pytest.mark.scenario(43)
def test_an_anniversary_on_a_leap_day_returns_to_it():
    calendar = BillingCalendar(interval="year", anchor=date(2028, 2, 29))
    ends = list(always(calendar).ends_between(at("2028-02-29"), at("2032-03-01")))
    assert [end.date().isoformat() for end in ends] == ["2029-02-28", "2030-02-28", "2031-02-28", "2032-02-29"]


def test_a_midnight_that_does_not_exist_is_the_instant_at_which_the_clock_skips_it():
    period = BillingCalendar(interval="month", zone="America/Sao_Paulo", anchor=date(2018, 10, 4)).period_at(
        at("2018-11-10")
    )
    assert period.start == at("2018-11-04T03:00")


@pytest.mark.scenario(49)
@pytest.mark.parametrize("interval", ["week", "month", "quarter", "year"])
@pytest.mark.parametrize("anchor", [None, date(2027, 1, 31), date(2028, 2, 29)])
@pytest.mark.parametrize("zone", ZONES[1:5:3])
def test_the_periods_of_ten_years_touch_and_do_not_overlap(interval, anchor, zone):
    calendar = BillingCalendar(interval=interval, zone=zone, anchor=anchor)
    ends = list(always(calendar).ends_between(at("2026-01-01"), at("2036-01-01")))
    assert len(ends) >= {"week": 520, "month": 119, "quarter": 39, "year": 9}[interval]
    for start, end in pairwise(ends):
        assert start < end
        assert calendar.period_at(start) == Period(start, end)
        assert calendar.period_at(end - timedelta(microseconds=1)) == Period(start, end)


@pytest.mark.scenario(46)
@given(
    st.datetimes(datetime(2001, 1, 1), datetime(2099, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - given a zone
    st.sampled_from(["week", "month", "quarter", "year"]),
    st.sampled_from(ZONES),
    st.none() | st.dates(date(2000, 1, 1), date(2030, 12, 31)),
)
def test_every_instant_lies_in_exactly_one_period(instant, interval, zone, anchor):
    calendar = BillingCalendar(interval=interval, zone=zone, anchor=anchor)
    period = calendar.period_at(instant)
    assert period.start <= instant < period.end
    assert calendar.period_at(period.start) == period
    assert calendar.period_at(period.end).start == period.end


@pytest.mark.scenario(45)
def test_a_day_on_which_the_clock_is_set_back_has_25_hours():
    day = at("2026-11-01T04:00"), at("2026-11-02T05:00")
    assert {window_at("America/New_York", "day", at(f"2026-11-01T0{hour}:30")) for hour in (5, 6)} == {day}


@pytest.mark.scenario(93)
def test_a_day_in_tokyo_begins_at_15_utc():
    assert window_at("Asia/Tokyo", "day", at("2026-11-24T16:00")).start == at("2026-11-24T15:00")


calendars = st.builds(
    BillingCalendar,
    interval=st.sampled_from(["week", "month", "quarter", "year"]),
    zone=st.sampled_from(ZONES),
    anchor=st.none() | st.dates(date(2020, 1, 1), date(2027, 12, 31)),
)


@pytest.mark.scenario(48)
@given(st.lists(st.tuples(st.integers(0, 800), calendars), min_size=1, max_size=4))
def test_periods_of_a_tenant_that_changes_its_calendar_tile_time(changes):
    """Each change holds from the end of the period in which it is made."""
    history = CalendarHistory()
    made: dict[datetime, BillingCalendar] = {}
    for days, calendar in sorted(changes, key=lambda change: change[0]):
        made[history.period_at(at("2026-01-01") + timedelta(days=days)).end] = calendar
        history = CalendarHistory([CalendarFrom(since, each) for since, each in sorted(made.items())])
    start, until = at("2026-01-01"), at("2030-01-01")
    ends = list(history.ends_between(start, until))
    for begins, end in pairwise(ends):
        assert begins < end
        assert history.period_at(begins) == history.period_at(end - timedelta(microseconds=1)) == Period(begins, end)
    assert set(made) <= {*ends, *(each for each in made if each > until)}
