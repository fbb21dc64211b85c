"""A month's usage is read from the sums in the promised time, and is the same as the records say."""

import time
from datetime import timedelta

import pytest

from benchmarks.billing import seed as seeding
from billing.periods import Period
from billing.usage.buckets import BucketQuery, UsagePosition, read_page
from core.db import database_now, unit_of_work

GROUPS = ("model", "project_id", "api_key_id")


@pytest.mark.timed
def test_a_month_of_many_records_is_read_in_time_and_is_exact(stage, promised_s):
    seeding.seed(stage.engine, prefix="tn_month_", tenants=1, records=40_000, first=1)
    took, pages = [], []
    for _ in range(20):
        with unit_of_work(stage.engine) as session:
            end = database_now(session).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
            period = Period(end - timedelta(days=30), end)
            query = BucketQuery(tenant_id="tn_month_0", period=period, width="1d", group_by=GROUPS)
            began = time.monotonic()
            pages.append(read_page(session, query, UsagePosition(period.start), buckets_max=31))
            took.append(time.monotonic() - began)
    assert sorted(took)[18] < promised_s(0.3), "the 95th percentile"
    assert pages[0].following is None
    assert sum(group.requests for group in pages[0].groups) == 40_000
    assert sum(group.amount_nanos for group in pages[0].groups) == stage.value(
        "SELECT sum(amount_nanos) FROM usage_records"
    )
    assert {group.project_id for group in pages[0].groups} == {f"ad_{number}" for number in range(10)}


def test_minutes_and_days_of_the_same_range_sum_to_the_same(stage):
    tenant = stage.tenant()
    stage.bill(*(stage.event(tenant, settled_at_ms=stage.ago_ms(minutes=37 * n)) for n in range(30)))
    with unit_of_work(stage.engine) as session:
        end = database_now(session) + timedelta(seconds=1)
        period = Period(end - timedelta(hours=15, minutes=11), end)
        found = []
        for width in ("1m", "1h", "1d"):
            groups, position = [], UsagePosition(period.start)
            query = BucketQuery(tenant_id=tenant, period=period, width=width, group_by=GROUPS)
            while position is not None:
                page = read_page(session, query, position, buckets_max=100)
                groups += page.groups
                position = page.following
            found.append([sum(getattr(group, name) for group in groups) for name in ("requests", "amount_nanos")])
    assert found[0] == found[1] == found[2]
    assert found[0][0] == stage.value(
        "SELECT count(*) FROM usage_records WHERE settled_at >= :start", start=period.start
    ) > 20  # fmt: skip
