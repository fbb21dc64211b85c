"""A month's usage is read from the sums, and is the same as the records say."""

from datetime import UTC, timedelta

import msgspec
import pytest
import sqlalchemy as sa

from billing.usage import amendments, buckets
from billing.usage.amendments import AmendedQuantities
from billing.usage.buckets import BucketQuery, UsagePosition, read_page
from core.db import database_now, unit_of_work
from core.periods import Period

GROUPS = ("base_model", "adapter_id", "key_id")


def whole_days(stage, days: int) -> Period:
    end = stage.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Period(end - timedelta(days=days), end)


def plan_of(stage, report) -> str:
    """How Postgres reads what a report asks for last."""
    asked = []

    def note(connection, cursor, statement, parameters, context, many):
        asked.append((statement, parameters))

    with unit_of_work(stage.engine) as session:
        sa.event.listen(stage.engine, "before_cursor_execute", note)
        report(session)
        sa.event.remove(stage.engine, "before_cursor_execute", note)
        statement, parameters = next(each for each in asked if "usage_" in each[0])
        return "\n".join(session.connection().exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())


def test_whole_days_are_read_from_the_sums_by_day_and_from_nothing_else(stage):
    period = whole_days(stage, 30)
    query = BucketQuery(tenant_id="tn_1", period=period, width="1d", group_by=GROUPS)
    plan = plan_of(stage, lambda session: read_page(session, query, UsagePosition(period.start), buckets_max=31))
    assert "usage_days" in plan
    assert "usage_hours" not in plan
    assert "usage_records" not in plan


@pytest.mark.parametrize("group_by", [None, "adapter", "base_model", "key"])
def test_a_report_that_ends_now_reads_records_of_the_running_hour_only(stage, group_by):
    tenant = stage.tenant()
    old, new = stage.ago_ms(days=2, hours=3), stage.ago_ms(seconds=1)
    stage.bill(*(stage.event(tenant, settled_at_ms=at) for at in (old, new, new)))
    stage.force("DELETE FROM usage_records WHERE settled_at < now() - interval '1 day'")  # the sums have it still
    end = stage.now()
    with unit_of_work(stage.engine) as session:
        found = buckets.usage(
            session,
            tenant_id=tenant,
            start=end - timedelta(days=30, minutes=7),
            end=end,
            bucket="1d",
            group_by=group_by,
        )
    assert sum(each.requests for each in found) == 3


def test_late_estimated_and_amended_usage_is_in_the_sums_by_day(stage):
    tenant = stage.tenant()
    at = stage.ago_ms(days=1)
    first, estimate = (stage.event(tenant, settled_at_ms=at, output_tokens=tokens) for tokens in (20, 5))
    gone = msgspec.structs.replace(estimate, estimated=True, outcome="gateway_gone")
    stage.bill(first, gone)
    stage.bill(msgspec.structs.replace(gone, estimated=False, outcome="done", output_tokens=9))
    with unit_of_work(stage.engine) as session:
        amendments.amend(session, first.request_id, AmendedQuantities(output_tokens=11), reason="a test", actor="key_1")
    stage.close()
    stage.bill(stage.event(tenant, settled_at_ms=at + 1, output_tokens=7))
    assert stage.value("SELECT count(*) FROM usage_records WHERE late_from IS NOT NULL") == 1
    (day,) = stage.rows("SELECT * FROM usage_days")
    hours = "SELECT sum(requests) AS requests, sum(estimated_requests) AS estimated_requests, {} FROM usage_hours"
    counted = ("input_tokens", "cached_tokens", "output_tokens", "kv_page_ms", "output_nanos", "kv_nanos")
    (sums,) = stage.rows(hours.format(", ".join(f"sum({name}) AS {name}" for name in counted)))
    assert {name: day[name] for name in sums} == dict(sums)
    assert (day["requests"], day["output_tokens"]) == (3, 11 + 9 + 7)


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
