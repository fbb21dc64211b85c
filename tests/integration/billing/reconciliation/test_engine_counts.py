"""Engines' counters outlive Redis and the engines that reported them."""

import time

import msgspec
import pytest
from sqlmodel import Session

from billing.reconciliation.engine_counts import EngineCountKeeper, read_totals
from core import redis_keys
from core.contracts.replicas import EngineCounters


def report(stage, boot: str, prompt: int, generation: int) -> None:
    counters = EngineCounters(
        prompt_tokens=prompt, generation_tokens=generation, probe_prompt_tokens=0, probe_generation_tokens=0
    )
    stage.redis.hset(redis_keys.ENGINE_COUNTERS, boot, msgspec.json.encode(counters))


@pytest.mark.scenario(158)
def test_what_engines_counted_is_known_after_redis_lost_its_data(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant, input_tokens=2_000, output_tokens=20))
    stage.bill(stage.event(tenant, input_tokens=5, cached_tokens=0, output_tokens=5))
    report(stage, "rep_1/boot_1", 1_000, 10)
    keeper = EngineCountKeeper(stage.engine, stage.redis)
    keeper.run_once()
    report(stage, "rep_1/boot_1", 2_000, 20)
    report(stage, "rep_1/boot_2", 5, 5)
    keeper.run_once()
    before = stage.reconcile()
    assert (before.engine_tokens, before.drift_tokens) == (2_030, 0)
    stage.redis.delete(redis_keys.ENGINE_COUNTERS)
    after = stage.reconcile()
    assert (after.engine_tokens, after.drift_tokens) == (2_030, 0)
    report(stage, "rep_1/boot_2", 6, 5)
    assert stage.reconcile().engine_tokens == 2_031


def test_counts_are_written_once_a_change_and_only_grow(stage):
    keeper = EngineCountKeeper(stage.engine, stage.redis)
    report(stage, "rep_1/boot_1", 7, 0)
    keeper.run_once()
    written = stage.value("SELECT reported_at FROM engine_counts")
    keeper.run_once()
    assert stage.value("SELECT reported_at FROM engine_counts") == written
    report(stage, "rep_1/boot_1", 3, 0)
    EngineCountKeeper(stage.engine, stage.redis).run_once()
    assert stage.value("SELECT prompt_tokens FROM engine_counts") == 7


def test_probes_alone_are_written_once_a_minute(stage, monkeypatch):
    def report_probes(count: int, of_tenants: int = 0) -> None:
        counters = EngineCounters(
            prompt_tokens=count + of_tenants, generation_tokens=count, probe_prompt_tokens=count,
            probe_generation_tokens=count,
        )  # fmt: skip
        stage.redis.hset(redis_keys.ENGINE_COUNTERS, "rep_1/boot_1", msgspec.json.encode(counters))
        keeper.run_once()

    def written() -> int:
        return stage.value("SELECT probe_prompt_tokens FROM engine_counts")

    now_ns = 100 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    keeper = EngineCountKeeper(stage.engine, stage.redis)
    report_probes(1)
    report_probes(2)
    assert written() == 1
    report_probes(3, of_tenants=1)
    assert written() == 3
    report_probes(4, of_tenants=1)
    now_ns += 60 * 10**9
    keeper.run_once()
    assert written() == 4


def test_engines_that_ended_a_week_ago_leave_redis_and_stay_counted(stage):
    keeper = EngineCountKeeper(stage.engine, stage.redis)
    report(stage, "rep_1/boot_1", 7, 0)
    keeper.run_once()
    stage.change("UPDATE engine_counts SET reported_at = now() - interval '8 days'")
    report(stage, "rep_1/boot_2", 1, 0)
    keeper.run_once()
    keeper.forget_ended()
    assert stage.redis.hkeys(redis_keys.ENGINE_COUNTERS) == [b"rep_1/boot_2"]
    assert stage.reconcile().engine_tokens == 8


def test_page_time_outlives_redis_like_tokens(stage):
    counters = EngineCounters(
        prompt_tokens=9, generation_tokens=1, probe_prompt_tokens=2, probe_generation_tokens=1,
        kv_page_ms=5_000, probe_kv_page_ms=40,
    )  # fmt: skip
    stage.redis.hset(redis_keys.ENGINE_COUNTERS, "rep_1/boot_1", msgspec.json.encode(counters))
    EngineCountKeeper(stage.engine, stage.redis).run_once()
    stage.redis.delete(redis_keys.ENGINE_COUNTERS)
    with Session(stage.engine) as session:
        (kept,) = read_totals(session, stage.redis).values()
    assert kept == counters
    assert kept.tenant_kv_page_ms == 4_960
