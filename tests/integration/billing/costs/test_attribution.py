"""The job of the billing worker that stores windows and shares out hours, with the worker's own rights."""

import pytest

from billing import metrics
from billing.costs.hours import CostAttribution
from billing.worker import connect_redis
from control_plane import database_roles
from core import db, redis_acl
from core.loops import DatabaseChanges, Loop, LoopThreads
from tests.conftest import wait_until
from tests.fixtures.least_privilege import as_role, as_user


@pytest.fixture
def as_billing(costs, postgres_settings, redis_settings):
    """The connections of a billing worker: its role of Postgres and its user of Redis."""
    engine = db.connect(as_role(postgres_settings, database_roles.BILLING))
    with connect_redis(as_user(redis_settings, redis_acl.BILLING), costs.stage.settings) as redis:
        yield engine, redis
    engine.dispose()


def background(engine, redis, settings) -> LoopThreads:
    loop = Loop("costs", CostAttribution(engine, redis, settings).run_once, 0.05)
    changes = DatabaseChanges(engine, look_s=1)
    return LoopThreads([loop], changes, backoff_max_s=1, failures=metrics.JOBS_FAILED)


def test_windows_are_stored_and_hours_shared_out_in_the_background(costs, as_billing):
    costs.rate()
    costs.publish(costs.window(0, 10, final=True))
    thread = background(*as_billing, costs.settings)
    thread.start()
    try:
        wait_until(lambda: costs.rows() == {"idle": 10_000_000}, what="the shared-out hour")
    finally:
        thread.stop(10)
    costs.publish(costs.window(10, 20))
    assert costs.redis.xlen("tenora:cost_windows") == 1, "a stopped thread reads nothing"
