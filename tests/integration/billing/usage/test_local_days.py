"""Usage by the days of a time zone: each record in exactly one day, also where the clock changes."""

from datetime import datetime, timedelta

import pytest

from billing.usage.buckets import usage
from billing.usage.recording import RecordingLimits, record
from core import clock
from core.db import unit_of_work
from core.periods import Period

# Usage of any age, so that the test holds on any day after these.
LIMITS = RecordingLimits(
    clock_skew=timedelta(minutes=5), late_max=timedelta(days=100_000), price_age_max=timedelta(days=1)
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def used(stage):
    """Records usage of one output token at each of these instants. Returns the tenant."""

    def use(*instants: str) -> str:
        tenant = stage.tenant()
        events = [
            stage.event(tenant, settled_at_ms=clock.to_ms(at(each)), input_tokens=0, cached_tokens=0, output_tokens=1)
            for each in instants
        ]
        with unit_of_work(stage.engine) as session:
            result = record(session, {b"%d" % number: event for number, event in enumerate(events)}, LIMITS)
        assert len(result.recorded) == len(instants), result
        return tenant

    return use


def read(stage, tenant: str, period: Period, bucket: str, zone: str, **changes) -> list[tuple[datetime, int]]:
    with unit_of_work(stage.engine) as session:
        found = usage(
            session, tenant_id=tenant, start=period.start, end=period.end, bucket=bucket, zone=zone, **changes
        )
    return [(each.start, each.requests) for each in found]


@pytest.mark.scenario(45)
@pytest.mark.parametrize("group_by", [None, "revision"])
def test_two_hours_of_the_night_in_which_the_clock_is_set_back_are_in_one_day(stage, used, group_by):
    tenant = used("2026-11-01T03:59:59Z", "2026-11-01T05:30Z", "2026-11-01T06:30Z", "2026-11-02T05:00Z")
    period = Period(at("2026-10-31T04:00Z"), at("2026-11-03T05:00Z"))
    days = read(stage, tenant, period, "1d", "America/New_York", group_by=group_by)
    assert days == [
        (at("2026-10-31T04:00Z"), 1),
        (at("2026-11-01T04:00Z"), 2),
        (at("2026-11-02T05:00Z"), 1),  # 25 hours later
    ]
    hours = read(stage, tenant, period, "1h", "America/New_York", group_by=group_by)
    assert [start for start, _ in hours[1:3]] == [at("2026-11-01T05:00Z"), at("2026-11-01T06:00Z")]
    assert [start for start, _ in read(stage, tenant, period, "1d", "UTC", group_by=group_by)] == [
        at("2026-11-01T00:00Z"), at("2026-11-02T00:00Z"),
    ]  # fmt: skip


def test_days_of_a_zone_that_begin_within_an_hour_of_utc_are_exact(stage, used):
    """India is five and a half hours ahead: sums by hour do not know its days."""
    tenant = used("2026-11-01T18:29:59Z", "2026-11-01T18:30Z", "2026-11-02T18:29Z")
    period = Period(at("2026-11-01T00:00Z"), at("2026-11-03T00:00Z"))
    assert read(stage, tenant, period, "1d", "Asia/Kolkata") == [
        (at("2026-10-31T18:30Z"), 1), (at("2026-11-01T18:30Z"), 2),
    ]  # fmt: skip
