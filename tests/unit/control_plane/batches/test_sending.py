"""What an answer of the gateway means for a line, and how it looks in the output and error files."""

import json

import httpx
import pytest

from control_plane.batches.open_batch import LineTry
from control_plane.batches.sending import (
    GatewayClient,
    LineAnswer,
    answered_line,
    read_answer,
    unanswered_line,
    verdict,
    verdict_of_stored,
)
from control_plane.batches.settings import BatchWorkerSettings
from core.ids import new_id
from core.line_credential import HEADER, LineCredential, read_line
from tenora.stack.program import free_port
from tests.fixtures.control_plane.batches import line_of, opened

FINAL = {"x-should-retry": "false"}


def line(request_id: str = "req_1", **given: object) -> LineTry:
    return line_of(opened(0), request_id=request_id, body=b"{}", **given)


def refusal(code: str, message: str = "No.") -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "param": None, "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "code", "headers", "failures", "found"),
    [
        (200, "", {}, 1, "completed"),
        (401, "invalid_api_key", {}, 1, "key"),
        (403, "tenant_suspended", {}, 1, "key"),
        (403, "insufficient_scope", {}, 1, "batch"),
        (404, "model_not_found", {}, 1, "model"),
        (404, "unknown_url", {}, 1, "batch"),
        (404, "something_else", {}, 1, "failed"),
        (409, "request_in_progress", {}, 99, "again"),
        (409, "request_settled", FINAL, 1, "settled"),
        (429, "rate_limit_exceeded", {}, 99, "again"),
        (429, "rate_limit_exceeded", FINAL, 1, "failed"),
        (429, "insufficient_quota", FINAL, 4, "again"),
        (429, "insufficient_quota", FINAL, 5, "batch"),
        (400, "invalid_value", FINAL, 1, "failed"),
        (502, "replica_failed", {}, 4, "again"),
        (502, "replica_failed", {}, 5, "failed"),
        (503, "no_replica", {}, 99, "again"),
    ],
)
def test_what_follows_from_an_answer(status, code, headers, failures, found):
    answer = read_answer(status, headers, refusal(code) if code else b"{}")
    assert verdict(answer, failures=failures, failures_max=5) == found


def test_no_answer_is_repeated_and_says_that_room_is_lacking():
    silent = LineAnswer(0, b"")
    assert verdict(silent, failures=99, failures_max=5) == "again"
    assert silent.lacks_room
    assert read_answer(429, {"retry-after": "7"}, refusal("resource_unavailable")).lacks_room
    assert read_answer(429, {"retry-after": "7"}, refusal("resource_unavailable")).retry_after_s == 7
    used_up = read_answer(429, FINAL, refusal("insufficient_quota"))
    assert used_up.lacks_room  # or only held by requests that run
    assert used_up.is_failure
    assert not read_answer(429, FINAL, refusal("rate_limit_exceeded")).lacks_room
    assert not read_answer(502, {}, b"<html>").lacks_room


def test_a_completed_line_has_its_usage_and_its_price():
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
    body = json.dumps({"object": "chat.completion", "usage": usage}).encode()
    answer = read_answer(200, {"x-tenora-price-nanos": "1234"}, body)
    assert answer.usage == (9, 5, 4)
    assert answer.price_nanos == 1234
    for reported in (b"null", b'{"prompt_tokens": "many"}'):
        assert read_answer(200, {}, b'{"usage": ' + reported + b"}").usage == (0, 0, 0)
    embedding = read_answer(200, {}, b'{"usage": {"prompt_tokens": 3, "total_tokens": 3}}')
    assert embedding.usage == (3, 0, 0)


def test_an_answer_is_one_line_of_the_output_file():
    written = answered_line(line(), read_answer(200, {}, b'{\n "a": [1,\n 2]}'))
    assert written.count(b"\n") == 1
    assert json.loads(written) == {
        "id": "req_1",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "req_1", "body": {"a": [1, 2]}},
        "error": None,
    }


def test_a_failure_is_a_line_of_the_error_file_with_code_and_message():
    failed = json.loads(answered_line(line(), read_answer(400, {}, refusal("invalid_value", "Lower it."))))
    assert failed["error"] == {"code": "invalid_value", "message": "Lower it."}
    assert failed["response"]["status_code"] == 400
    unread = json.loads(answered_line(line(), read_answer(502, {}, b"<html>\n")))
    assert (unread["response"], unread["error"]["code"]) == (None, "invalid_answer")
    left = json.loads(unanswered_line("batch_1", line().plan, "batch_expired", "Too late."))
    assert (left["response"], left["error"]) == (None, {"code": "batch_expired", "message": "Too late."})


@pytest.mark.parametrize(
    ("status", "code", "headers", "found"),
    [
        (200, "", {}, "completed"),
        (409, "request_not_run", FINAL, "left"),
        (409, "request_in_progress", {}, "again"),
        (429, "rate_limit_exceeded", {}, "again"),
        (503, "overloaded", {}, "again"),
        (403, "tenant_suspended", {}, "left"),
        (404, "model_not_found", FINAL, "left"),
    ],
)
def test_a_line_that_is_only_asked_for_is_completed_or_left(status, code, headers, found):
    assert verdict_of_stored(read_answer(status, headers, refusal(code) if code else b"{}")) == found


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (429, refusal("resource_unavailable"), True),
        (503, refusal("no_replica"), True),
        (401, refusal("invalid_api_key"), True),
        (503, refusal("gateway_stopping"), False),
        (503, b"upstream reset", False),
        (502, refusal("replica_failed"), False),
        (409, refusal("request_in_progress"), False),
    ],
)
def test_only_a_refusal_says_that_a_line_did_not_run(status, body, refused):
    assert read_answer(status, {}, body).was_refused is refused
    assert not LineAnswer(0, b"", code="no_answer").was_refused


def test_the_credential_says_what_a_line_is_and_without_a_connection_nothing_was_sent():
    client = GatewayClient(BatchWorkerSettings(gateway_url=f"http://127.0.0.1:{free_port()}"), b"pepper")
    assert client.send(line()).was_refused
    sent: list[httpx.Request] = []
    request_id = new_id("req")

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        raise httpx.ReadTimeout("late")

    client._http = httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(answer))
    assert not client.send(line(request_id, is_paid=True, only_stored=True)).was_refused
    (request,) = sent
    assert request.headers["idempotency-key"] == "batch_1:3"
    assert read_line(request.headers[HEADER], [b"pepper"], now_s=0) == LineCredential(
        "0" * 64, request_id, is_paid=True, only_stored=True
    )
