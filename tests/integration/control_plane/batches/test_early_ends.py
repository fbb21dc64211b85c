"""What becomes of lines whose batch ends early: those that ran are in the output file, and no other is run."""

import pytest

from control_plane.batches import open_batch, worker
from control_plane.batches.sending import LineAnswer
from core import clock
from tests.conftest import wait_until
from tests.integration.control_plane.batches.conftest import line, read, refusal

LOST = LineAnswer(0, b"", code="no_answer", retry_after_s=0.1)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr(worker, "_REFRESH_S", 0.05)


def test_an_answer_that_was_outstanding_at_a_cancellation_is_asked_for(sdk, begin, rounds):
    batch = begin(line("ran"), line("refused"))
    rounds.check()

    def cancel_and_lose(request):
        if request.custom_id == "refused":
            return refusal(503, "no_replica")
        if request.only_stored:
            return None
        rounds.gateway.stored.add(request.custom_id)
        sdk.batches.cancel(batch.id)
        return LOST

    rounds.gateway.refuse = cancel_and_lose
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert done.status == "cancelled"
    assert read(sdk, done.output_file_id).keys() == {"ran"}
    assert {each["error"]["code"] for each in read(sdk, done.error_file_id).values()} == {"batch_cancelled"}
    assert [each.only_stored for each in rounds.gateway.received if each.custom_id == "ran"] == [False, True]


@pytest.mark.parametrize(
    "column", ["status = 'cancelling', end_code = 'gone', end_message = 'x'", "expires_at = now()"]
)
def test_a_new_worker_asks_for_the_answers_of_the_one_that_died(sdk, begin, rounds, column):
    batch = begin(*[line(f"c{n}") for n in range(20)])
    rounds.check()
    rounds.gateway.stored = {"c3", "c4"}  # they ran, and the worker died before it stored their results
    rounds.change(f"UPDATE batches SET {column}")
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert read(sdk, done.output_file_id).keys() == {"c3", "c4"}
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 18)
    assert sorted(each.line for each in rounds.gateway.received) == list(range(1, 21))
    assert all(each.only_stored for each in rounds.gateway.received)


def test_lines_that_still_run_are_asked_for_until_they_have_ended(sdk, begin, rounds):
    batch = begin(line("a"))
    rounds.check()
    rounds.gateway.stored = {"a"}
    rounds.gateway.refuse = lambda _: refusal(409, "request_in_progress") if len(rounds.gateway.received) < 3 else None
    rounds.change("UPDATE batches SET expires_at = now()")
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert (done.status, done.request_counts.completed) == ("expired", 1)
    assert len(rounds.gateway.received) == 3


def test_the_id_of_a_line_that_may_have_run_outlives_its_hour(sdk, begin, rounds, monkeypatch):
    hour_ms, now_ms, hours = 3_600_000, clock.now_ms, [0]
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + hours[0] * hour_ms)

    def lose_or_refuse(request):
        if len(rounds.gateway.received) <= 2:
            hours[0] += 1
            return LOST if request.custom_id == "lost" else refusal(429, "resource_unavailable")
        return None

    rounds.gateway.refuse = lose_or_refuse
    batch = begin(line("lost"), line("refused"))
    rounds.run()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 2
    ids = {name: {r.request_id for r in rounds.gateway.received if r.custom_id == name} for name in ("lost", "refused")}
    assert (len(ids["lost"]), len(ids["refused"])) == (1, 2)


def test_a_batch_whose_results_are_too_large_ends_early(sdk, begin, rounds):
    rounds.limits = rounds.limits.model_copy(update={"batch_results_bytes_max": 1024})
    rounds.settings = rounds.settings.model_copy(update={"batch_concurrency_max": 1})
    batch = begin(*[line(f"c{n}") for n in range(200)])
    rounds.gateway.refuse = lambda _: None
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert done.status == "completed"
    assert 0 < done.request_counts.completed < 200
    assert {each["error"]["code"] for each in read(sdk, done.error_file_id).values()} == {"results_too_large"}


def test_a_limit_that_was_only_held_by_running_requests_ends_nothing(sdk, begin, rounds):
    rounds.gateway.refuse = lambda _: (
        refusal(429, "insufficient_quota", final=True) if 2 < len(rounds.gateway.received) < 6 else None
    )
    batch = begin(*[line(f"c{n}") for n in range(10)])
    rounds.run()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 10


def test_stuck_batches_give_their_turn_to_others(api, sdk_of, sdk, begin, rounds, monkeypatch):
    monkeypatch.setattr(open_batch, "_STUCK_S", 0.2)
    rounds.settings = rounds.settings.model_copy(update={"batch_running_max": 1})
    stuck = begin(line("stuck", model="none"), line("also", model="none"))
    other = begin(line("b"))
    rounds.check()
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if b'"none"' in request.body else None
    going_on = rounds.worker()
    while going_on.run_once() and sdk.batches.retrieve(other.id).status == "in_progress":
        pass
    assert sdk.batches.retrieve(stuck.id).status == "in_progress"
    rounds.gateway.refuse = lambda _: None
    rounds.run(going_on)
    assert sdk.batches.retrieve(stuck.id).request_counts.completed == 2


def test_one_tenants_refusals_slow_no_other_batch(api, sdk_of, sdk, begin, rounds):
    begin(*[line(f"a{n}", model="none") for n in range(30)])
    begin(*[line(f"b{n}") for n in range(30)])
    rounds.check()
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if b'"none"' in request.body else None
    going_on = rounds.worker()
    wait_until(lambda: going_on.run_once() and len(rounds.gateway.stored) == 30, timeout_s=60)
    wait_until(lambda: going_on.run_once() and len(going_on._open) == 1)
    (refused,) = going_on._open.values()
    assert refused.pace.limit < rounds.settings.batch_concurrency_max


def test_a_batch_that_has_caught_up_falls_back_to_its_class(sdk, begin, rounds):
    batch = begin(*[line(f"c{n}") for n in range(60)])
    rounds.check()
    rounds.change("UPDATE batches SET created_at = now() - interval '23 hours', expires_at = now() + interval '1 h'")
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if request.line > 30 else None
    going_on = rounds.worker()
    wait_until(lambda: going_on.run_once() and sdk.batches.retrieve(batch.id).request_counts.completed == 30)
    going_on.run_once()
    assert rounds.gateway.received[0].service_class == "interactive"
    assert sdk.batches.retrieve(batch.id).service_class == "batch"


def test_a_paused_batch_is_not_in_danger_by_its_pause(api, sdk, begin, rounds):
    batch = begin(line("a"))
    rounds.check()
    api.admin.put("/api/v1/admin/batches/pause", json={"reason": "an incident"}).raise_for_status()
    rounds.change("UPDATE batches SET created_at = now() - interval '23 hours', expires_at = now() + interval '1 h'")
    rounds.worker().run_once()
    assert sdk.batches.retrieve(batch.id).service_class == "batch"
