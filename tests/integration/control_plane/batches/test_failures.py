"""What breaks beside a batch: files that are gone, stores that fail, workers that compete."""

import json
import threading

import openai
import pytest
import sqlalchemy as sa

from control_plane.batches import ending, files, lines, results
from core.errors import Unavailable
from tests.conftest import wait_until
from tests.integration.control_plane.batches.conftest import jsonl, line, read, refusal


def remove_object(rounds, file_id: str) -> None:
    rounds.bucket.delete([f"files/{file_id}"])


def test_an_input_file_outlives_its_batch(sdk, begin, rounds):
    file = sdk.files.create(file=("a", jsonl(line("a"))), purpose="batch")
    rounds.change("UPDATE batch_files SET expires_at = now() + interval '1 h'")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert sdk.files.retrieve(file.id).expires_at >= batch.expires_at + 2 * 86_400


def test_a_batch_whose_input_is_gone_ends_with_the_results_that_it_has(sdk, begin, rounds):
    batch = begin(line("a"), line("b"))
    rounds.check()
    rounds.gateway.refuse = lambda request: refusal(503, "no_replica") if request.custom_id == "b" else None
    going_on = rounds.worker()
    going_on.run_once()
    remove_object(rounds, batch.input_file_id)
    sdk.batches.cancel(batch.id)
    rounds.run(going_on)
    done = sdk.batches.retrieve(batch.id)
    assert (done.status, done.request_counts.completed, done.error_file_id) == ("cancelled", 1, None)
    assert read(sdk, done.output_file_id).keys() == {"a"}


@pytest.mark.parametrize("checked", [False, True])
def test_a_batch_whose_input_is_gone_before_it_runs_says_so(sdk, begin, rounds, checked):
    batch = begin(line("a"))
    if checked:
        rounds.check()
    remove_object(rounds, batch.input_file_id)
    rounds.run()
    done = sdk.batches.retrieve(batch.id)
    assert done.status == ("completed" if checked else "failed")
    assert rounds.gateway.received == []
    if not checked:
        assert done.errors.data[0].code == "file_deleted"


@pytest.mark.parametrize(("room", "name"), [(lines, "check"), (ending, "_lines")])
def test_a_batch_that_fails_holds_up_no_other(sdk, begin, rounds, monkeypatch, room, name):
    bad, good = begin(line("bad")), begin(line("good"))
    work = getattr(room, name)

    def broken(*given, **more):
        content = given[0] if room is lines else rounds.bucket.get(f"files/{given[-1].input_file_id}")
        if b'"bad"' in (content if isinstance(content, bytes) else content.read()):
            raise RuntimeError("a defect")
        if room is lines:
            content.seek(0)
        return work(*given, **more)

    if room is ending:
        rounds.check()
        worker = rounds.worker()
        while worker.run_once():
            pass
    monkeypatch.setattr(room, name, broken)
    for _ in range(50):
        try:
            rounds.check()
            rounds.end()
        except RuntimeError:  # the loop logs it
            continue
    expected = ("validating", "in_progress") if room is lines else ("finalizing", "completed")
    assert (sdk.batches.retrieve(bad.id).status, sdk.batches.retrieve(good.id).status) == expected


def test_a_file_that_could_not_be_stored_takes_no_room(sdk, rounds, monkeypatch):
    def fail(*_):
        raise Unavailable("the object store is away")

    with monkeypatch.context() as away:
        away.setattr(files, "put", fail)
        with pytest.raises(openai.InternalServerError):
            sdk.files.create(file=("a", b"{}"), purpose="batch")
    with rounds.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT deleted_at IS NOT NULL FROM batch_files")).scalar_one()
    files.remove_unused(rounds.engine, rounds.bucket, limit=10)
    with rounds.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM batch_files")).scalar_one() == 0


def test_one_of_two_workers_leads_and_the_other_takes_over(sdk, begin, rounds):
    batch = begin(*[line(f"c{n}") for n in range(40)])
    rounds.check()
    going = threading.Event()

    def notice(_):
        going.set()
        going.wait(0.05)

    rounds.gateway.refuse = notice
    first, second = rounds.worker(), rounds.worker()
    leader = threading.Thread(target=first.run_once)
    leader.start()
    assert going.wait(30)
    assert second.run_once() is False
    leader.join()
    rounds.run(second)
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 40
    assert len(rounds.gateway.stored) == 40


def test_a_worker_that_fails_begins_again_from_what_is_stored(sdk, begin, rounds, monkeypatch):
    batch = begin(*[line(f"c{n}") for n in range(8)])
    rounds.check()
    worker, store, calls = rounds.worker(), results.store, []

    def fail_once(*given):
        calls.append(given)
        if len(calls) == 5:
            raise RuntimeError("the database is away")
        store(*given)

    monkeypatch.setattr(results, "store", fail_once)
    with pytest.raises(RuntimeError, match="away"):
        wait_until(lambda: not worker.run_once(), timeout_s=60)
    assert worker._open == {}
    rounds.run(worker)
    done = sdk.batches.retrieve(batch.id)
    assert (done.request_counts.completed, done.cost_nanos) == (8, 56)


def test_an_output_file_that_is_deleted_while_it_is_read_is_read_to_its_end(sdk, begin, rounds):
    batch = begin(*[line(f"c{n}", text="x" * 5_000) for n in range(300)])
    rounds.settings = rounds.settings.model_copy(update={"batch_concurrency_max": 64})
    rounds.gateway.refuse = lambda request: refusal(400, json.loads(request.body)["text"])
    rounds.run()
    file_id = sdk.batches.retrieve(batch.id).error_file_id
    with sdk.files.with_streaming_response.content(file_id) as answer:
        pieces = answer.iter_bytes(1024)
        begun = next(pieces)
        sdk.files.delete(file_id)
        files.remove_unused(rounds.engine, rounds.bucket, limit=10)
        whole = begun + b"".join(pieces)
    assert whole.count(b"\n") == 300
    with pytest.raises(openai.NotFoundError):
        sdk.files.content(file_id)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "bot", "prompt": "once"}),
        ("/v1/embeddings", {"model": "e5", "input": ["a", "b"]}),
    ],
)
def test_completions_and_embeddings_run_as_lines(sdk, rounds, endpoint, body):
    content = jsonl(*[line(f"c{n}", url=endpoint) | {"body": body} for n in range(3)])
    file = sdk.files.create(file=("a", content), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    rounds.run()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 3
    assert {(each.endpoint, each.body) for each in rounds.gateway.received} == {(endpoint, json.dumps(body).encode())}
