"""Quotas compared with the ledger: drift is found among tenants with usage, shown and corrected."""

import pytest

from billing import metrics
from billing.quotas import rebuild
from billing.quotas.drift import QuotaDrift
from billing.usage import amendments
from billing.usage.stream import read_backlog
from core import redis_keys
from core.db import unit_of_work
from tests.conftest import wait_until
from tests.fixtures.billing_worker import environment, worker
from tests.integration.billing.quotas.test_rebuild import COUNTS, Platform


@pytest.fixture
def platform(stage) -> Platform:
    return Platform(stage)


@pytest.fixture
def drift(stage) -> QuotaDrift:
    return QuotaDrift(stage.engine, stage.redis, every_s=0, tenants_max=1)


def test_drift_is_shown_and_corrected_a_few_tenants_at_a_time(stage, platform, drift):
    above, below, quiet = [platform.tenant() for _ in range(3)]
    platform.publish()
    drift.run_once(read_backlog(stage.redis))  # begins before any usage
    platform.serve(*[above, below, quiet] * 3)
    stage.drain()
    before = platform.counts()
    for tenant_id, tokens in {above: 70, below: -50, quiet: 9}.items():
        stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_used", tokens)
    mended = metrics.QUOTA_DRIFTS._value.get()
    drift.record_active([above, below])
    shown = []
    for _ in range(3):
        drift.run_once(read_backlog(stage.redis))
        shown.append(metrics.QUOTA_DRIFT_TOKENS._value.get())
    assert shown == [70, 50, 0]
    assert metrics.QUOTA_DRIFTS._value.get() == mended + 2
    found = platform.counts()
    assert found.pop(redis_keys.tenant_quota(quiet)) != before.pop(
        redis_keys.tenant_quota(quiet)
    )  # it has used nothing since
    assert found == before


def test_a_worker_that_starts_compares_every_tenant_of_the_month(stage, platform):
    tenants = [platform.tenant() for _ in range(3)]
    platform.publish()
    platform.serve(*tenants)
    stage.drain()
    before = platform.counts()
    for tenant_id in tenants:
        stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_used", 70)
    drift = QuotaDrift(stage.engine, stage.redis, every_s=0, tenants_max=2)
    drift.run_once(read_backlog(stage.redis))
    drift.run_once(read_backlog(stage.redis))
    assert platform.counts() == before


def test_the_quota_follows_usage_that_is_voided(stage, platform, drift):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(tenant_id)
    before = platform.counts()
    drift.run_once(read_backlog(stage.redis))
    platform.serve(tenant_id)
    stage.drain()
    newest = stage.value("SELECT request_id FROM usage_records ORDER BY settled_at DESC LIMIT 1")
    with unit_of_work(stage.engine) as session:
        amendments.void(session, newest, reason="a test of ours", actor="key_admin")
    differed = metrics.QUOTA_DRIFTS._value.get()
    drift.run_once(read_backlog(stage.redis))
    *counted, gpu_us = before[redis_keys.tenant_quota(tenant_id)]
    after = platform.counts()[redis_keys.tenant_quota(tenant_id)]
    assert after == [*counted, 2 * gpu_us], "a void gives tokens and money back, and no time that a replica has worked"
    assert metrics.QUOTA_DRIFTS._value.get() == differed, "an amendment needs no look for a cause"


def test_drift_in_money_is_corrected_except_for_rounding(stage, platform, drift):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(tenant_id)
    before = platform.counts()
    for nanos in (-5_000, 999):
        stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_spent_nanos", nanos)
        drift.record_active([tenant_id])
        drift.run_once(read_backlog(stage.redis))
    tokens, month_nanos, *others = before[redis_keys.tenant_quota(tenant_id)]
    assert platform.counts()[redis_keys.tenant_quota(tenant_id)] == [tokens, month_nanos + 999, *others]


def test_a_tenant_that_cannot_be_corrected_does_not_block_others(stage, platform):
    broken, other = platform.tenant(), platform.tenant()
    platform.publish()
    platform.serve(broken, other)
    before = platform.counts()[redis_keys.tenant_quota(other)]
    stage.redis.set(redis_keys.key_quota(broken, "key_1"), "no quota")
    for tenant_id in (broken, other):
        stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_used", 70)
    drift = QuotaDrift(stage.engine, stage.redis, every_s=0, tenants_max=2)
    drift.record_active([broken, other])
    for _ in range(2):
        drift.run_once(read_backlog(stage.redis))
    assert stage.redis.hmget(redis_keys.tenant_quota(other), COUNTS) == [str(each).encode() for each in before]
    stage.redis.delete(redis_keys.key_quota(broken, "key_1"))
    drift.run_once(read_backlog(stage.redis))  # the tenant is still checked
    assert stage.redis.hget(redis_keys.tenant_quota(broken), "month_used") == b"120"


def test_a_stream_too_long_to_read_each_round_is_skipped_even_if_fully_recorded(stage, platform, drift, monkeypatch):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(*[tenant_id] * 3)
    stage.drain()  # the stream is not trimmed
    stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_used", 70)
    monkeypatch.setattr("billing.quotas.drift._EVENTS_MAX", 2)
    drift.record_active([tenant_id])
    drift.run_once(read_backlog(stage.redis))
    assert stage.redis.hget(redis_keys.tenant_quota(tenant_id), "month_used") == b"430"
    stage.stream.trim()
    drift.run_once(read_backlog(stage.redis))
    assert stage.redis.hget(redis_keys.tenant_quota(tenant_id), "month_used") == b"360"


def test_the_worker_corrects_a_month_that_was_counted_twice(
    stage, platform, postgres_settings, redis_settings, tmp_path
):
    tenant_id = platform.tenant()
    platform.publish()
    env = environment(postgres_settings.postgres_dsn, redis_settings.redis_url)
    with worker(env | {"TENORA_BILLING_QUOTA_DRIFT_S": "1"}, tmp_path / "log"):
        stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "month_used", 120)
        platform.serve(tenant_id)
        wait_until(
            lambda: platform.counts()[redis_keys.tenant_quota(tenant_id)][0] == 120, timeout_s=30, what="the count"
        )


def test_the_worker_repairs_a_redis_that_is_restored_from_an_old_copy_or_loses_everything(
    stage, platform, postgres_settings, redis_settings, tmp_path
):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(*[tenant_id] * 2)
    stage.drain()
    stage.stream.trim()
    rebuild.rebuild(stage.engine, stage.redis)
    assert not rebuild.is_due(stage.engine, stage.redis)
    before = platform.counts()
    stage.redis.hincrby(redis_keys.tenant_quota(tenant_id), "spent_nanos", -5)
    stage.redis.set(redis_keys.QUOTAS_REBUILT, "the run before")  # a copy has the mark of its server
    env = environment(postgres_settings.postgres_dsn, redis_settings.redis_url)
    quotas = {"TENORA_BILLING_QUOTA_REPAIR_S": "1", "TENORA_BILLING_QUOTA_DRIFT_S": "3600"}
    with worker(env | quotas, tmp_path / "log"):
        wait_until(lambda: platform.counts() == before, timeout_s=30, what="the counts")
        stage.redis.flushall()
        platform.publish()
        wait_until(lambda: platform.counts() == before, timeout_s=30, what="the counts of a Redis that was emptied")
