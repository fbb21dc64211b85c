"""The request log's files are merged, kept for some days, and rid of a tenant, while rows still come."""

import pytest

from control_plane.request_log import files
from control_plane.request_log.upkeep import RequestLogUpkeep
from control_plane.request_log.writer import RequestLogWriter
from control_plane.settings import RequestLogSettings
from core import clock
from tests.fixtures.control_plane.logged_requests import append, served, stored_files, stored_ids

DAY_MS = 86_400_000


@pytest.fixture
def upkeep(engine, redis, bucket) -> RequestLogUpkeep:
    return RequestLogUpkeep(engine, redis, bucket, RequestLogSettings(request_log_days=2))


def write_singly(redis, bucket, count: int, **changes: object) -> list[str]:
    """So many requests, each in a file of its own."""
    one = RequestLogWriter(redis, bucket, entries_max=1)
    wanted = append(redis, *(served(**changes) for _ in range(count)))
    while one.run_once():
        pass
    return wanted


def test_small_files_become_one_and_no_row_is_lost_or_doubled_meanwhile(redis, bucket, upkeep):
    wanted = sorted(write_singly(redis, bucket, 17))
    upkeep.run_once()
    assert len(stored_files(bucket)) == 1
    assert stored_ids(bucket) == wanted
    assert len(bucket.objects("requests/day=")) == 18  # a query that has listed them can still read them
    upkeep.run_once()
    assert len(bucket.objects("requests/day=")) == 1
    more = write_singly(redis, bucket, 15)
    upkeep.run_once()
    assert stored_ids(bucket) == sorted([*wanted, *more])
    assert [file.level for file in stored_files(bucket)] == [2]


def test_days_that_are_over_are_deleted(redis, bucket, upkeep):
    write_singly(redis, bucket, 2, settled_at_ms=clock.now_ms() - 3 * DAY_MS)
    kept = write_singly(redis, bucket, 2, settled_at_ms=clock.now_ms() - 2 * DAY_MS)
    upkeep.run_once()
    assert stored_ids(bucket) == sorted(kept)


def test_a_tenant_is_erased_with_what_was_on_its_way_and_no_other(redis, bucket, upkeep):
    others = write_singly(redis, bucket, 1, tenant_id="tn_b") + append(redis, served(tenant_id="tn_b"))
    write_singly(redis, bucket, 1, tenant_id="tn_a")
    waiting = append(redis, served(tenant_id="tn_a"))
    files.request_erasure(bucket, "tn_a")
    upkeep.run_once()
    assert files.requested_erasures(bucket)  # an entry from before the request is not written yet
    one = RequestLogWriter(redis, bucket, entries_max=10)
    while one.run_once():
        pass
    assert waiting[0] in stored_ids(bucket)
    upkeep.run_once()
    assert stored_ids(bucket) == sorted(others)
    assert not files.requested_erasures(bucket)
