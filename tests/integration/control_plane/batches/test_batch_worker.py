"""The life of batches on a real Postgres and S3: checked, sent, stored once, ended. A stand-in answers the lines; the
real gateway is in test_end_to_end.py.
"""

import json
import time
from datetime import timedelta

import pytest
import sqlalchemy as sa

from control_plane import metrics
from control_plane.batches import files, results
from control_plane.batches.results import LineResult
from core import clock
from tests.conftest import wait_until
from tests.integration.control_plane.batches.conftest import line, read, refusal


def test_every_line_is_answered_once_counted_and_in_the_output_file(sdk, begin, rounds):
    batch = begin(*[line(f"c{number}") for number in range(25)])
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert done.status == "completed"
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (25, 25, 0)
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (250, 125, 375)
    assert done.usage.input_tokens_details.cached_tokens == 100
    assert (done.cost_nanos, done.model, done.error_file_id) == (175, "bot", None)
    output = read(sdk, done.output_file_id)
    assert output.keys() == {f"c{number}" for number in range(25)}
    assert all(each["response"]["status_code"] == 200 and each["error"] is None for each in output.values())
    assert sdk.files.retrieve(done.output_file_id).purpose == "batch_output"
    assert sorted(rounds.gateway.asked()) == sorted(output)
    assert len({request.request_id for request in rounds.gateway.received}) == 25
    assert {request.service_class for request in rounds.gateway.received} == {"batch"}
    with rounds.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM batch_results")).scalar_one() == 0


def test_a_bad_line_fails_the_batch_before_any_runs(sdk, begin, rounds):
    batch = begin(line("a"), line("a"), line("b", stream=True), line("c", url="https://elsewhere.example/"))
    rounds.run()
    failed = sdk.batches.retrieve(batch.id)
    assert (failed.status, failed.request_counts.total) == ("failed", 0)
    assert [(each.line, each.code, each.param) for each in failed.errors.data] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "stream_not_allowed", "body.stream"),
        (4, "invalid_url", "url"),
    ]
    assert rounds.gateway.received == []


def test_a_plan_bounds_the_tokens_of_open_batches(api, sdk_of, rounds):
    sdk = sdk_of(api.tenant(batch_tokens=1_500))

    def made(name: str, **asked: int):
        content = json.dumps(line(name, **asked)).encode()
        file = sdk.files.create(file=("a", content), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        rounds.check()
        return batch

    first, second = made("a", max_tokens=1_000), made("b")  # the plan lets it generate 512
    assert sdk.batches.retrieve(first.id).status == "in_progress"
    refused = sdk.batches.retrieve(second.id)
    assert (refused.status, refused.errors.data[0].code) == ("failed", "token_limit_exceeded")
    rounds.run()
    third = made("c", max_tokens=1_000)
    rounds.run()
    assert sdk.batches.retrieve(third.id).status == "completed"


def test_refused_lines_are_sent_again_with_the_same_key_and_id(sdk, begin, rounds):
    def busy(request):
        return refusal(429, "resource_unavailable") if len(rounds.gateway.received) < 4 else None

    rounds.gateway.refuse = busy
    batch = begin(line("a"), line("b"))
    rounds.run()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 2
    by_line = {}
    for request in rounds.gateway.received:
        by_line.setdefault(request.line, set()).add(request.request_id)
    assert [len(ids) for ids in by_line.values()] == [1, 1]


def test_a_settled_id_whose_answer_is_lost_gets_another_attempt(sdk, begin, rounds):
    rounds.gateway.refuse = lambda _: (
        refusal(409, "request_settled", final=True) if len(rounds.gateway.received) == 1 else None
    )
    batch = begin(line("a"))
    rounds.run()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 1
    assert len({request.request_id for request in rounds.gateway.received}) == 2


def test_a_dead_adapter_fails_its_lines_and_no_others(sdk, begin, rounds):
    rounds.gateway.refuse = lambda request: (
        refusal(404, "model_not_found", final=True) if b'"gone"' in request.body else None
    )
    batch = begin(*[line(f"g{n}", model="gone") for n in range(20)], *[line(f"b{n}") for n in range(3)])
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 3, 20)
    assert {each["error"]["code"] for each in read(sdk, done.error_file_id).values()} == {"model_not_found"}
    assert len([each for each in rounds.gateway.asked() if each.startswith("g")]) <= 4  # as many as ran at once
    assert done.model is None


def test_a_revoked_key_fails_the_rest_with_the_reason(api, tenant, begin, rounds):
    def revoke(_):
        tenant.http.delete(f"/api/v1/api-keys/{tenant.key_id}")
        return refusal(401, "invalid_api_key") if len(rounds.gateway.received) > 1 else None

    rounds.settings = rounds.settings.model_copy(update={"batch_concurrency_max": 1})
    another = api.client(tenant.http.post("/api/v1/api-keys", json={}).json()["key"])
    batch = begin(*[line(f"c{n}") for n in range(5)])
    rounds.gateway.refuse = revoke
    rounds.run()
    done = another.get(f"/v1/batches/{batch.id}").json()
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    errors = another.get(f"/v1/files/{done['error_file_id']}/content").text
    assert errors.count('"invalid_api_key"') == 4


def test_a_spent_limit_fails_the_rest(sdk, begin, rounds):
    rounds.settings = rounds.settings.model_copy(update={"batch_retry_max_s": 0.2})
    rounds.gateway.refuse = lambda _: (
        refusal(429, "insufficient_quota", final=True) if len(rounds.gateway.received) > 2 else None
    )
    batch = begin(*[line(f"c{n}") for n in range(10)])
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert done.status == "completed"
    assert done.request_counts.completed + done.request_counts.failed == 10
    codes = {each["error"]["code"] for each in read(sdk, done.error_file_id).values()}
    assert codes == {"insufficient_quota"}
    assert len(set(rounds.gateway.asked())) < 10


def test_an_expired_batch_keeps_what_was_done(sdk, begin, rounds):
    batch = begin(*[line(f"c{n}") for n in range(3)])
    rounds.check()
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if request.custom_id != "c1" else None
    worker = rounds.worker()
    worker.run_once()
    rounds.change("UPDATE batches SET expires_at = now()")
    rounds.run(worker)
    done = sdk.batches.retrieve(batch.id)
    assert (done.status, done.expired_at is not None) == ("expired", True)
    assert read(sdk, done.output_file_id).keys() == {"c1"}
    assert {each["error"]["code"] for each in read(sdk, done.error_file_id).values()} == {"batch_expired"}
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 2)


@pytest.mark.parametrize("checked", [False, True])
def test_a_cancelled_batch_sends_no_further_line(sdk, begin, rounds, checked):
    batch = begin(line("a"), line("b"))
    if checked:
        rounds.check()
    assert sdk.batches.cancel(batch.id).status == "cancelling"
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
    assert all(request.only_stored for request in rounds.gateway.received)
    assert len(read(sdk, done.error_file_id)) == (2 if checked else 0)


def test_paused_batches_send_nothing_until_they_go_on(api, sdk, begin, rounds):
    batch = begin(line("a"))
    api.admin.put("/api/v1/admin/batches/pause", json={"reason": "an incident"}).raise_for_status()
    rounds.check()
    worker = rounds.worker()
    assert worker.run_once()
    assert rounds.gateway.received == []
    api.admin.delete("/api/v1/admin/batches/pause").raise_for_status()
    rounds.run(worker)
    assert sdk.batches.retrieve(batch.id).status == "completed"


def test_a_batch_in_danger_of_its_deadline_rises_and_shows_it(sdk, begin, rounds):
    before = metrics.BATCHES_RISEN._value.get()
    batch = begin(line("a"))
    rounds.check()
    rounds.change("UPDATE batches SET created_at = now() - interval '23 hours', expires_at = now() + interval '1 h'")
    rounds.run()
    assert {request.service_class for request in rounds.gateway.received} == {"interactive"}
    assert sdk.batches.retrieve(batch.id).service_class == "interactive"
    assert metrics.BATCHES_RISEN._value.get() == before + 1


def test_a_new_worker_goes_on_where_another_died(sdk, begin, rounds):
    batch = begin(*[line(f"c{n}") for n in range(6)])
    rounds.check()
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if request.line > 3 else None
    rounds.worker().run_once()  # and is never heard of again
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 3
    rounds.gateway.refuse = lambda _: None
    rounds.gateway.received.clear()
    rounds.run()
    assert sorted(rounds.gateway.asked()) == ["c3", "c4", "c5"]
    assert read(sdk, sdk.batches.retrieve(batch.id).output_file_id).keys() == {f"c{n}" for n in range(6)}


def test_a_result_that_is_stored_twice_counts_once(sdk, begin, rounds):
    batch = begin(line("a"), line("b"))
    rounds.check()
    for _ in range(2):
        results.store(rounds.engine, [LineResult(batch.id, 1, failed=False, body=b"{}\n", cost_nanos=5)])
    done = sdk.batches.retrieve(batch.id)
    assert (done.request_counts.completed, done.cost_nanos) == (1, 5)


def test_batches_of_tenants_run_in_turn(api, sdk_of, begin, sdk, rounds):
    other = sdk_of(api.tenant())
    rounds.gateway.refuse = lambda _: time.sleep(0.02)
    begin(*[line(f"a{n}") for n in range(100)])
    content = b"\n".join(json.dumps(line(f"b{n}")).encode() for n in range(3))
    file = other.files.create(file=("b", content), purpose="batch")
    other.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    rounds.run()
    positions = [at for at, name in enumerate(rounds.gateway.asked()) if name.startswith("b")]
    assert max(positions) < 60


def test_the_objects_of_deleted_and_expired_files_are_removed(sdk, rounds):
    made = [sdk.files.create(file=(name, b"{}"), purpose="batch") for name in ("a", "b", "c")]
    sdk.files.delete(made[0].id)
    rounds.change(f"UPDATE batch_files SET expires_at = now() WHERE id = '{made[1].id}'")
    assert files.remove_unused(rounds.engine, rounds.bucket, limit=10) is False
    assert [each.id for each in sdk.files.list()] == [made[2].id]
    assert sdk.files.content(made[2].id).read() == b"{}"
    with rounds.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM batch_files")).scalar_one() == 1


def test_the_estimate_follows_the_speed_of_the_last_batches(sdk, begin, rounds):
    begin(line("a"))
    rounds.run()
    rounds.change("UPDATE batches SET in_progress_at = finalizing_at - interval '60 s'")
    batch = begin(line("b"), line("c"))
    rounds.check()
    shown = sdk.batches.retrieve(batch.id)
    due = shown.estimated_completion - clock.now().timestamp()
    assert timedelta(seconds=100) < timedelta(seconds=due) < timedelta(seconds=140)


def test_subscribers_hear_that_a_batch_has_ended(sdk, begin, rounds, engine):
    batch = begin(line("a"))
    rounds.run()
    query = sa.text("SELECT data FROM notifications WHERE event_type = 'batch.ended'")
    with engine.connect() as connection:
        data = wait_until(lambda: connection.execute(query).scalars().all(), what="the notification")[0]
    assert (data["batch_id"], data["status"], data["completed"]) == (batch.id, "completed", 1)
    assert data["output_file_id"] == sdk.batches.retrieve(batch.id).output_file_id
