"""The canary run before a revision is ready: requested, answered, lost, refused and awaited. The tests play the
agents.
"""

import json

import msgspec
import pytest

from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.registry.review import decision
from control_plane.registry.review.canary_worker import CanaryWorker
from core import redis_keys
from core.contracts.canary import CanaryJob, CanaryResult, CanaryRunning
from core.contracts.routes import AdapterRoute
from tests.fixtures.control_plane.registry_rows import add_revision, beat, impatient


@pytest.fixture
def exchange(engine, redis) -> CanaryWorker:
    return CanaryWorker(engine, redis, impatient())


@pytest.fixture
def tenant(api, base):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    return tenant


@pytest.fixture
def asked(base, tenant, engine, redis, exchange):
    """Makes a revision for which a replica is asked to run the canary; returns it and the job."""

    def ask() -> tuple[dict, CanaryJob]:
        revision = add_revision(engine, tenant, "bot", ready=False)
        beat(redis, base.id, replica_id="rep_1")
        exchange.run_once()
        (job,) = jobs(redis, base)
        return revision, job

    return ask


def jobs(redis, base, rank_class: int = 16) -> list[CanaryJob]:
    """Take every job of a pool, oldest first."""
    taken = []
    while encoded := redis.rpop(redis_keys.canary_jobs(base.id, rank_class)):
        taken.append(msgspec.json.decode(encoded, type=CanaryJob))
    return taken


def result(redis, job: CanaryJob, code: str | None = None, **changes) -> None:
    said = CanaryResult(
        **{
            "revision_id": job.revision_id,
            "attempt": job.attempt,
            "replica_id": "rep_1",
            "code": code,
            "message": "it returned no text",
            "prompt": "Hello",
            "base_answer": "Hi",
            "adapter_answer": "Ahoy",
            "logprob_difference": 1.5,
            "load_ms": 12,
        }
        | changes
    )
    redis.lpush(redis_keys.CANARY_RESULTS, msgspec.json.encode(said))


def seen(tenant, revision: dict, relay: OutboxRelay | None = None) -> dict:
    """The revision as its tenant sees it, with a relay after what was decided is published."""
    while relay is not None and relay.run_once():
        pass
    return tenant.http.get(f"/api/v1/adapters/bot/revisions/{revision['id']}").raise_for_status().json()


def grow_older(engine, seconds: int) -> None:
    with engine.begin() as connection:
        change = f"canary_asked_at = canary_asked_at - interval '{seconds} s'"
        connection.exec_driver_sql(f"UPDATE revisions SET {change}")


def test_a_revision_is_ready_once_a_replica_has_run_it(base, tenant, engine, redis, relay, exchange):
    assert exchange.run_once() is False, "nothing waits"
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    assert exchange.run_once() == impatient().canary_poll_ms / 1000, "until its result is there"
    waiting = seen(tenant, revision)
    assert (waiting["status"], waiting["stage"], waiting["sha256"]) == ("validating", "canary", None)
    (job,) = jobs(redis, base)
    assert (job.revision_id, job.engine_name, job.attempt) == (revision["id"], revision["engine_name"], 1)
    result(redis, job)
    exchange.run_once()
    published = seen(tenant, revision)
    assert (published["status"], published["stage"], published["sha256"]) == ("validating", "publishing", None)
    ready = seen(tenant, revision, relay)
    assert (ready["status"], ready["stage"], ready["sha256"]) == ("ready", None, revision["digest"])
    assert ready["report"]["notes"] == ["a note"]
    assert ready["report"]["canary"] == {
        "prompt": "Hello",
        "base_answer": "Hi",
        "adapter_answer": "Ahoy",
        "logprob_difference": 1.5,
        "load_ms": 12,
        "replica": "rep_1",
    }
    assert redis.hexists(redis_keys.snapshot("adapters"), f"{tenant.id}/bot")
    assert redis.llen(redis_keys.CANARY_RESULTS) == 0


def accepted_by_a_replica(asked, redis, exchange) -> dict:
    """A revision that has just become ready."""
    revision, job = asked()
    result(redis, job)
    exchange.run_once()
    return revision


def test_the_first_ready_revision_sets_prod_and_later_ones_wait(tenant, engine, redis, relay, exchange, asked):
    first, second = (accepted_by_a_replica(asked, redis, exchange) for _ in range(2))
    assert seen(tenant, second, relay)["status"] == "ready"
    route = msgspec.json.decode(redis.hget(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), type=AdapterRoute)
    assert (route.aliases, set(route.revisions)) == ({"prod": {first["id"]: 1}}, {first["id"], second["id"]})
    shown = tenant.http.get("/api/v1/adapters/bot").json()
    assert (shown["serves"], shown["newest_ready"]) == (first["id"], second["id"])
    with engine.connect() as connection:
        moved = connection.exec_driver_sql("SELECT actor, details FROM audit_events WHERE action = 'alias.moved'").all()
    assert [(row.actor, row.details["weights"]) for row in moved] == [(decision.WORKER, {first["id"]: 1})]
    tenant.http.delete("/api/v1/adapters/bot/aliases/prod").raise_for_status()
    third = accepted_by_a_replica(asked, redis, exchange)
    shown = tenant.http.get("/api/v1/adapters/bot").json()
    assert shown["serves"] == third["id"], "without prod, which its tenant removed, the name follows the newest"
    assert tenant.http.get("/api/v1/adapters/bot/aliases").json()["data"] == []


def test_a_failed_run_rejects_the_revision_and_names_the_fix(tenant, redis, relay, exchange, asked):
    code = "canary_not_finite"
    revision, job = asked()
    result(redis, job, code, adapter_answer="\0" * 3, logprob_difference=None)
    exchange.run_once()
    rejected = seen(tenant, revision)
    (problem,) = rejected["report"]["problems"]
    assert (rejected["status"], rejected["sha256"], problem["code"]) == ("rejected", None, code)
    assert problem["message"].startswith("it returned no text; ")
    assert "upload a corrected adapter" in problem["message"]
    assert rejected["report"]["canary"]["adapter_answer"] == "\N{REPLACEMENT CHARACTER}" * 3
    relay.rebuild("test")
    assert not redis.exists(redis_keys.snapshot("adapters"))


def test_a_lost_job_is_sent_again_and_a_late_result_is_dropped(base, tenant, engine, redis, relay, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    exchange.run_once()
    exchange.run_once()
    (first,) = jobs(redis, base)
    assert first.attempt == 1, "sent once until its timeout"
    grow_older(engine, 31)
    exchange.run_once()
    (second,) = jobs(redis, base)
    assert second.attempt == 2
    result(redis, msgspec.structs.replace(second, attempt=1), "canary_no_effect")
    redis.lpush(redis_keys.CANARY_RESULTS, b"{")
    result(redis, second)
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready"
    result(redis, second, "canary_no_effect")
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready", "a decision is final"


def test_a_result_whose_decision_was_not_committed_is_read_again(base, tenant, engine, redis, relay, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    exchange.run_once()
    result(redis, jobs(redis, base)[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE revisions RENAME TO away")
    with pytest.raises(Exception, match="revisions"):
        exchange.run_once()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO revisions")
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready"


def test_a_revision_whose_pool_never_answers_is_rejected(base, tenant, engine, redis, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    for attempt in (1, 2, 3):
        exchange.run_once()
        assert [job.attempt for job in jobs(redis, base)] == [attempt]
        grow_older(engine, 31)
    exchange.run_once()
    rejected = seen(tenant, revision)
    assert (rejected["status"], rejected["report"]["problems"][0]["code"]) == ("rejected", "canary_failed")


def take(redis, job: CanaryJob, replica) -> None:
    running = CanaryRunning(attempt=job.attempt, replica_id=replica.id, boot_id=replica.boot_id)
    redis.set(redis_keys.canary_running(job.revision_id), msgspec.json.encode(running))


def test_a_job_that_waits_or_runs_is_no_attempt(base, tenant, engine, redis, relay, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False)
    replica = beat(redis, base.id)
    for _ in range(5):
        exchange.run_once()
        assert redis.llen(redis_keys.canary_jobs(base.id, 16)) == 1
        grow_older(engine, 31)
    (job,) = jobs(redis, base)
    take(redis, job, replica)
    for _ in range(5):
        exchange.run_once()
        assert jobs(redis, base) == []
        grow_older(engine, 31)
    assert job.attempt == 1
    result(redis, job)
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready"


def test_a_run_without_a_verdict_is_no_attempt_and_is_sent_again_after_its_timeout(
    base, tenant, engine, redis, relay, exchange
):
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    for _ in range(5):
        exchange.run_once()
        (job,) = jobs(redis, base)
        assert job.attempt == 1
        result(redis, job, "canary_later")
        exchange.run_once()
        waiting = seen(tenant, revision)
        assert (waiting["status"], jobs(redis, base)) == ("validating", [])
        assert "gave no verdict" in waiting["report"]["notes"][-1]
        grow_older(engine, 31)
    exchange.run_once()
    result(redis, jobs(redis, base)[0])
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready"


def test_a_revision_that_kills_three_replicas_is_rejected_even_if_each_was_the_last(
    base, tenant, engine, redis, exchange
):
    revision = add_revision(engine, tenant, "bot", ready=False)
    for attempt in (1, 2, 3):
        replica = beat(redis, base.id, replica_id="rep_1")
        exchange.run_once()
        (job,) = jobs(redis, base)
        assert job.attempt == attempt
        take(redis, job, replica)
        redis.delete(redis_keys.replica(replica.id))
        exchange.run_once()
        assert seen(tenant, revision)["status"] == "validating"
        grow_older(engine, 31)
    beat(redis, base.id, replica_id="rep_1")
    exchange.run_once()
    rejected = seen(tenant, revision)
    assert (rejected["status"], rejected["report"]["problems"][0]["code"]) == ("rejected", "canary_failed")


def test_a_waiting_successful_result_is_read_before_the_last_attempt_fails(
    base, tenant, engine, redis, relay, exchange
):
    revision = add_revision(engine, tenant, "bot", ready=False)
    beat(redis, base.id)
    for _ in range(3):
        exchange.run_once()
        (job,) = jobs(redis, base)
        grow_older(engine, 31)
    result(redis, job)
    exchange.run_once()
    assert seen(tenant, revision, relay)["status"] == "ready"


def test_a_revision_without_a_fitting_replica_waits_and_says_so(base, tenant, engine, redis, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False, rank=12)
    beat(redis, base.id, rank_max=8)
    beat(redis, base.id, state="starting")
    beat(redis, "another-base")
    for _ in range(5):
        exchange.run_once()
        grow_older(engine, 31)
    waiting = seen(tenant, revision)
    assert (waiting["status"], waiting["stage"]) == ("validating", "canary")
    note = waiting["report"]["notes"][-1]
    assert "rank 12" in note
    assert jobs(redis, base, 8) == []
    small, large = beat(redis, base.id, rank_max=16), beat(redis, base.id, rank_max=64)
    exchange.run_once()
    assert (len(jobs(redis, base, small.rank_max)), len(jobs(redis, base, large.rank_max))) == (1, 0)
    assert note not in seen(tenant, revision)["report"]["notes"]


def test_jobs_lost_with_their_pool_do_not_count(base, tenant, engine, redis, exchange):
    revision = add_revision(engine, tenant, "bot", ready=False)
    for _ in range(4):
        replica = beat(redis, base.id)
        exchange.run_once()
        assert [job.attempt for job in jobs(redis, base)] == [1]
        redis.delete(redis_keys.replica(replica.id))
        grow_older(engine, 31)
        exchange.run_once()
    assert seen(tenant, revision)["status"] == "validating"


def test_a_pools_queued_jobs_are_bounded_and_alternate_between_tenants(api, base, tenant, engine, redis, exchange):
    other = api.tenant()
    other.adapter("bot", base)
    flood = [add_revision(engine, tenant, "bot", ready=False)["id"] for _ in range(6)]
    single = add_revision(engine, other, "bot", ready=False)["id"]
    beat(redis, base.id)
    exchange.run_once()
    first = jobs(redis, base)
    assert [job.revision_id for job in first] == [flood[0], single]
    exchange.run_once()
    assert jobs(redis, base) == []
    result(redis, first[0])
    exchange.run_once()
    assert [job.revision_id for job in jobs(redis, base)] == [flood[1]]


def test_a_suspended_tenants_revision_is_neither_run_nor_decided(api, base, tenant, engine, redis, exchange, asked):
    revision, job = asked()
    path = f"/api/v1/admin/tenants/{tenant.id}"
    api.admin.patch(path, json={"status": "suspended"}).raise_for_status()
    result(redis, job, "canary_failed_to_load")
    exchange.run_once()
    grow_older(engine, 31)
    exchange.run_once()
    assert jobs(redis, base) == []
    api.admin.patch(path, json={"status": "active"}).raise_for_status()
    exchange.run_once()
    assert [job.attempt for job in jobs(redis, base)] == [2]
    assert seen(tenant, revision)["status"] == "validating"


def test_a_result_for_a_deleted_adapter_changes_nothing(tenant, redis, relay, exchange, asked):
    _, job = asked()
    tenant.http.delete("/api/v1/adapters/bot").raise_for_status()
    result(redis, job)
    exchange.run_once()
    relay.rebuild("test")
    assert not redis.exists(redis_keys.snapshot("adapters"))
    assert job.engine_name in json.loads(redis.hvals(redis_keys.snapshot("revocations"))[0])["engine_names"]
