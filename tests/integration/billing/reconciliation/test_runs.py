"""Runs of reconciliation: what engines counted against the ledger, by hour, replica, tenant and model."""

from datetime import timedelta

import msgspec
import pytest
from prometheus_client import REGISTRY

from billing.reconciliation import runs
from core import redis_keys
from core.contracts.usage import YIELDED
from tests.integration.billing.reconciliation.conftest import LIMITS, MODEL


def unexplained_metric(**labels) -> float | None:
    return REGISTRY.get_sample_value("tenora_billing_reconciliation_unexplained", labels)


def scheduled(stage, *, every: timedelta) -> runs.ReconciliationSchedule:
    return runs.ReconciliationSchedule(stage.engine, LIMITS, every=every, full_every=timedelta(days=1))


def alarms(found) -> list[tuple[str, str, int]]:
    return [(each.kind, each.unit, each.unexplained) for each in found.differences if each.unexplained]


@pytest.mark.scenario(156)
def test_tokens_after_the_last_checkpoint_are_explained_by_the_id_of_their_request(stage, reconciled):
    tenant = stage.tenant()
    exact = reconciled.event(tenant, input_tokens=900_000, cached_tokens=0, output_tokens=99_836, kv_page_ms=0)
    estimate = reconciled.event(
        tenant, outcome="gateway_gone", estimated=True, input_tokens=100, output_tokens=0, kv_page_ms=900
    )
    stage.bill(exact, estimate)
    reconciled.report(tenant_id=tenant, requests=2, prompt_tokens=900_100, output_tokens=99_900, kv_page_ms=1_000)
    reconciled.report_ended(tenant, estimate.request_id, prompt_tokens=100, output_tokens=64, kv_page_ms=1_000)
    found = reconciled.run()
    assert (found.engine_tokens, found.ledger_tokens) == (1_000_000, 999_936)
    assert (found.explained_tokens, found.unexplained_tokens, found.differing) == (64, 0, 0)
    assert (found.explained_kv_page_ms, found.unexplained_kv_page_ms) == (100, 0)
    assert {each.request_ids for each in found.differences} == {(estimate.request_id,)}


@pytest.mark.scenario(157)
def test_one_token_more_is_an_alarm_with_replica_hour_and_model(stage, reconciled):
    tenant = stage.tenant()
    exact = reconciled.event(tenant, input_tokens=900_000, cached_tokens=0, output_tokens=99_835, kv_page_ms=0)
    estimate = reconciled.event(
        tenant, outcome="gateway_gone", estimated=True, input_tokens=100, output_tokens=0, kv_page_ms=0
    )
    stage.bill(exact, estimate)
    reconciled.report(tenant_id=tenant, requests=2, prompt_tokens=900_100, output_tokens=99_900)
    reconciled.report_ended(tenant, estimate.request_id, prompt_tokens=100, output_tokens=64, kv_page_ms=0)
    found = reconciled.run()
    assert (found.explained_tokens, found.unexplained_tokens, found.differing) == (64, 1, 1)
    (difference,) = found.differences
    assert (difference.replica_id, difference.base_model, difference.hour) == ("rep_1", MODEL, reconciled.hour)
    assert difference.tenant_id == tenant
    shown = unexplained_metric(
        kind="engine_ledger", unit="token", replica="rep_1", base_model=MODEL, hour=reconciled.hour.isoformat()
    )
    assert shown == 1
    assert REGISTRY.get_sample_value("tenora_billing_reconciliation_differences") == 1


def test_a_schedule_runs_once_an_interval_and_shows_the_last_result_in_between(stage, reconciled):
    tenant = stage.tenant()
    stage.bill(reconciled.event(tenant))
    schedule = scheduled(stage, every=timedelta(hours=1))
    schedule.run_once()
    schedule.run_once()
    assert len(reconciled.listed()) == 1
    scheduled(stage, every=timedelta(0)).run_once()
    assert [each.mode for each in reconciled.listed()] == ["changed", "full"]


def test_a_schedule_reads_everything_again_once_a_day(stage, reconciled):
    stage.bill(reconciled.event(stage.tenant()))
    reconciled.run(full=True)
    reconciled.run()
    stage.force("UPDATE reconciliation_runs SET started_at = started_at - interval '23 hours'")
    for hours, modes in (("0", ["changed"]), ("2", ["full"])):
        stage.force(f"UPDATE reconciliation_runs SET started_at = started_at - interval '{hours} hours'")
        scheduled(stage, every=timedelta(0)).run_once()
        assert [each.mode for each in reconciled.listed(1)] == modes


def test_a_schedule_measures_by_how_much_the_ledger_differs_from_sums_of_usage(stage, reconciled):
    stage.bill(reconciled.event(stage.tenant()))
    scheduled(stage, every=timedelta(0)).run_once()
    assert REGISTRY.get_sample_value("tenora_billing_ledger_drift_nanos") == 0
    stage.change("UPDATE usage_hours SET output_nanos = output_nanos + 7")
    scheduled(stage, every=timedelta(0)).run_once()
    assert REGISTRY.get_sample_value("tenora_billing_ledger_drift_nanos") == 7


def test_tokens_that_are_charged_as_cached_and_that_no_engine_took_from_its_cache_are_an_alarm(stage, reconciled):
    tenant = stage.tenant()
    estimate = reconciled.event(tenant, outcome="gateway_gone", estimated=True, cached_tokens=100)
    stage.bill(reconciled.event(tenant, cached_tokens=32), estimate)
    counts = {"tenant_id": tenant, "requests": 2, "prompt_tokens": 200, "output_tokens": 40, "kv_page_ms": 3_202}
    reconciled.report(**counts, cached_tokens=30)
    found = reconciled.run()
    assert alarms(found) == [("cached_tokens", "token", -2)]
    assert found.differences[0].tenant_id == tenant
    assert stage.reconcile().excess_cached_tokens == 2
    reconciled.report(**counts, cached_tokens=40)
    assert reconciled.run().differences == (), "the ledger may charge fewer of them, as of an estimate"


def test_cached_tokens_of_a_request_that_was_lost_are_explained_by_its_id_and_excuse_no_others(stage, reconciled):
    tenant = stage.tenant()
    lost, guessed = (reconciled.event(tenant, cached_tokens=64, outcome=o) for o in ("replica_gone", "gateway_gone"))
    guessed = msgspec.structs.replace(guessed, estimated=True)
    stage.bill(lost, guessed)
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=100, cached_tokens=32, output_tokens=20)
    reconciled.report_ended(tenant, guessed.request_id, cached_tokens=32)
    assert [each for each in alarms(reconciled.run()) if each[0] == "cached_tokens"] == []
    stage.bill(reconciled.event(tenant, cached_tokens=8))
    assert ("cached_tokens", "token", -8) in alarms(reconciled.run())


@pytest.mark.scenario(158)
def test_what_engines_counted_is_known_after_redis_lost_its_data(stage, reconciled):
    tenant = stage.tenant()
    stage.bill(reconciled.event(tenant))
    counts = {"tenant_id": tenant, "requests": 1, "prompt_tokens": 100, "output_tokens": 20, "kv_page_ms": 1_601}
    reconciled.report(**counts)
    stage.redis.flushall()
    assert (stage.reconcile().engine_tokens, reconciled.run().differences) == (120, ())
    reconciled.report(**counts)  # engines repeat their totals
    assert (stage.reconcile().engine_tokens, reconciled.run().differences) == (120, ())


def test_prompts_that_are_billed_as_output_are_found(stage, reconciled):
    """Their sum is what the engine counted."""
    tenant = stage.tenant()
    stage.bill(reconciled.event(tenant))
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=101, output_tokens=19, kv_page_ms=1_601)
    found = reconciled.run()
    assert {(each.subject, each.unexplained) for each in found.differences} == {
        ("rep_1: prompt tokens", 1), ("rep_1: output tokens", -1),
    }  # fmt: skip


def test_differences_that_were_not_stored_are_found_again(stage, reconciled):
    for number in range(3):
        stage.bill(reconciled.event(stage.tenant(), reconciled.hour - timedelta(hours=number)))
    cut = runs.RunLimits(settle=timedelta(0), differences_max=2)
    assert len(runs.run(stage.engine, cut).differences) == 2
    stage.change("UPDATE usage_replica_hours SET changed_at = now() - interval '1 day'")
    again = runs.run(stage.engine, cut)
    assert (again.mode, again.differing) == ("full", 9)


def test_a_request_that_lost_its_end_is_no_excuse_for_another_one(stage, reconciled):
    """An answer that its gateway saw whole must be billed whole, whatever its engine reports by id."""
    tenant = stage.tenant()
    done = reconciled.event(tenant, output_tokens=20)
    stage.bill(done)
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=100, output_tokens=21, kv_page_ms=1_601)
    reconciled.report_ended(tenant, done.request_id, output_tokens=21)
    assert alarms(reconciled.run()) == [("engine_ledger", "token", 1)]


def test_a_request_without_any_record_is_explained_by_what_its_engine_reports(stage, reconciled):
    """Its gateway died before the first checkpoint, or tried it again on another replica."""
    tenant = stage.tenant()
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=100, output_tokens=3, kv_page_ms=70)
    reconciled.report_ended(tenant, reconciled.request_id(), output_tokens=3, kv_page_ms=70)
    found = reconciled.run()
    assert (found.explained_tokens, found.explained_kv_page_ms, found.differing) == (103, 70, 0)


def test_page_time_that_an_aborted_answer_held_after_its_last_report_is_explained_by_its_id(stage, reconciled):
    tenant = stage.tenant()
    gone = reconciled.event(tenant, outcome="client_gone", kv_page_ms=1_500)
    stage.bill(gone)
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=100, output_tokens=20, kv_page_ms=1_601)
    assert alarms(reconciled.run()) == [("engine_ledger", "page_millisecond", 101)]
    reconciled.report_ended(tenant, gone.request_id)
    found = reconciled.run()
    assert (found.mode, found.explained_kv_page_ms, found.differing) == ("changed", 101, 0)


def test_requests_that_ran_when_their_engine_died_are_explained_by_their_ids(stage, reconciled):
    tenant = stage.tenant()
    lost = reconciled.event(tenant, outcome="replica_gone")
    stage.bill(lost)
    found = reconciled.run()
    assert {(each.unit, each.explained, each.unexplained) for each in found.differences} == {
        ("token", -100, 0), ("token", -20, 0), ("page_millisecond", -1_601, 0),
    }  # fmt: skip
    assert found.differences[0].request_ids == (lost.request_id,)


def test_aborted_prefills_are_in_the_ledger_alone(stage, reconciled):
    tenant = stage.tenant()
    stage.bill(
        reconciled.event(tenant, outcome="client_gone", cached_tokens=0, output_tokens=0, aborted_prefill_tokens=100)
    )
    reconciled.report(tenant_id=tenant, requests=1, kv_page_ms=1_601)
    assert reconciled.run().differences == ()


@pytest.mark.scenario(159)
def test_a_later_run_reads_only_hours_that_changed_and_a_full_one_finds_the_same(stage, reconciled):
    tenant = stage.tenant()
    hours = [reconciled.hour - timedelta(hours=n) for n in range(4)]
    for hour in hours:
        stage.bill(reconciled.event(tenant, hour))
        reconciled.report(
            tenant_id=tenant, hour=hour, requests=1, prompt_tokens=100, output_tokens=20, kv_page_ms=1_601
        )
    first = reconciled.run()
    assert (first.mode, first.hours, first.differing) == ("full", 4, 0)
    long_ago = "SELECT now() - interval '1 day'"
    stage.change(f"UPDATE usage_replica_hours SET changed_at = ({long_ago})")
    stage.change(f"UPDATE engine_usage_hours SET changed_at = ({long_ago})")
    assert reconciled.run().hours == 0
    reconciled.report(
        tenant_id=tenant, hour=hours[2], requests=2, prompt_tokens=100, output_tokens=20, kv_page_ms=1_602
    )
    changed = reconciled.run()
    assert (changed.mode, changed.hours, alarms(changed)) == (
        "changed", 1, [("engine_ledger", "page_millisecond", 1)]
    )  # fmt: skip
    stage.change(f"UPDATE engine_usage_hours SET changed_at = ({long_ago})")
    again = reconciled.run()
    assert (again.hours, again.differences) == (1, changed.differences), "an hour that differed is read again"
    full = reconciled.run(full=True)
    assert (full.hours, full.differences) == (4, changed.differences)


def test_totals_on_demand_count_an_old_hour_by_the_last_run_until_it_changes(stage, reconciled):
    tenant = stage.tenant()
    estimate = reconciled.event(tenant, outcome="gateway_gone", estimated=True)
    stage.bill(reconciled.event(tenant, cached_tokens=32), estimate)
    counts = {"tenant_id": tenant, "requests": 2, "prompt_tokens": 200, "output_tokens": 45}
    reconciled.report(**counts, cached_tokens=30)
    reconciled.report_ended(tenant, estimate.request_id, output_tokens=25)
    found = stage.reconcile()
    assert (found.explained_drift_tokens, found.excess_cached_tokens) == (5, 2)
    reconciled.run()
    for table, column in (
        ("usage_replica_hours", "changed_at"), ("engine_usage_hours", "changed_at"),
        ("engine_ended_requests", "reported_at"),
    ):  # fmt: skip
        stage.force(f"UPDATE {table} SET {column} = now() - interval '3 days'")
    assert stage.reconcile() == found
    reconciled.report(**counts, cached_tokens=32)
    assert (stage.reconcile().explained_drift_tokens, stage.reconcile().excess_cached_tokens) == (5, 0)


def test_an_hour_that_changed_a_moment_ago_waits(stage, reconciled):
    stage.bill(reconciled.event(stage.tenant()))
    patient = runs.RunLimits(settle=timedelta(minutes=5), differences_max=10)
    assert runs.run(stage.engine, patient).differing == 0
    stage.change("UPDATE usage_replica_hours SET changed_at = now() - interval '6 minutes'")
    assert runs.run(stage.engine, patient).differing == 3


def test_a_report_that_is_repeated_or_late_changes_nothing(stage, reconciled):
    tenant = stage.tenant()
    for count in (2, 3, 2, 3):
        reconciled.report(
            tenant_id=tenant, requests=count, prompt_tokens=100 * count, output_tokens=count, kv_page_ms=count
        )
    (row,) = stage.rows("SELECT * FROM engine_usage_hours WHERE tenant_id = :t", t=tenant)
    assert (row["requests"], row["prompt_tokens"], row["output_tokens"], row["kv_page_ms"]) == (3, 300, 3, 3)
    stage.change("UPDATE engine_usage_hours SET changed_at = to_timestamp(1)")
    reconciled.report(tenant_id=tenant, requests=3, prompt_tokens=300, output_tokens=3, kv_page_ms=3)
    assert stage.value("SELECT max(changed_at) = to_timestamp(1) FROM engine_usage_hours"), "nothing new"


def test_a_malformed_report_stops_no_other(stage, reconciled):
    for payload in (b"", b"{", b'{"replica_id":"r","boot_id":"b","base_model":"m","hours":[{}]}'):
        stage.redis.xadd(redis_keys.ENGINE_USAGE, {"report": payload})
    tenant = stage.tenant()
    reconciled.report(tenant_id=tenant, requests=1)
    assert stage.value("SELECT count(*) FROM engine_usage_hours WHERE tenant_id = :t", t=tenant) == 1
    assert stage.redis.xlen(redis_keys.ENGINE_USAGE) == 0


def test_what_a_batch_request_computed_before_it_gave_way_is_the_engines_and_in_no_bill(stage, reconciled):
    """It ran twice on one engine, which knows it under one id."""
    tenant = stage.tenant()
    answered = reconciled.event(tenant, input_tokens=100, output_tokens=20, kv_page_ms=1_601, service_class="batch")
    gave_way = msgspec.structs.replace(
        answered, request_id=f"{answered.request_id}{YIELDED}1", outcome="yielded", output_tokens=7, kv_page_ms=600
    )
    stage.bill(gave_way, answered)
    stage.bill(gave_way)
    reconciled.report(tenant_id=tenant, requests=2, prompt_tokens=200, output_tokens=27, kv_page_ms=2_201)
    found = reconciled.run(full=True)
    assert (found.engine_tokens, found.ledger_tokens, found.differences) == (227, 227, ())
    assert stage.value("SELECT sum(requests) FROM usage_replica_hours") == 1
    assert stage.value("SELECT sum(output_tokens) FROM usage_hours") == 20
    assert stage.value("SELECT sum(output_tokens) FROM usage_records") == 20
    reconciled.report(tenant_id=tenant, requests=1, prompt_tokens=0, output_tokens=5, kv_page_ms=0)
    reconciled.report_ended(tenant, answered.request_id, prompt_tokens=200, output_tokens=32, kv_page_ms=2_201)
    assert reconciled.run().explained_tokens == 0, "it is in no gateway's death"
