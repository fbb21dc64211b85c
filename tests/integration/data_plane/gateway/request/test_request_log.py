"""Every request and every refusal is one row of the request log and one line of the access log, without its text."""

import json
import re

import httpx
import openai
import pytest

from control_plane.request_log.rows import rows_of
from core import redis_keys
from core.contracts.request_log import LoggedRequest
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, chat
from tests.integration.data_plane.gateway.settlement.test_killed_gateway import killed_under_streams

SECRET = "do not repeat me"


@pytest.fixture(scope="module")
def gateway_settings():
    return {"request_log_refusals_s": 0.05}


def rows(stack, tenant) -> list[LoggedRequest]:
    entries = stack.client.xrange(redis_keys.REQUEST_LOG)
    return [row for _, fields in entries for row in rows_of(fields) if row.tenant_id == tenant.id]


def only_row(stack, tenant) -> LoggedRequest:
    [row] = wait_until(lambda: rows(stack, tenant), what="a row of the request log")
    return row


def access_lines(stack) -> list[dict]:
    lines = [json.loads(line) for line in stack.gateway.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def test_a_stream_is_one_row_with_its_phases_and_no_text(stack, tenant):
    answer = list(chat(tenant.sdk(), SECRET, stream=True, max_tokens=40))
    event, row = tenant.event(), only_row(stack, tenant)
    assert row.request_id == event.request_id
    assert (row.model, row.base_model, row.replica_id) == ("tiny-chat", event.base_model, "rep_one")
    assert (row.outcome, row.code, row.count) == ("done", None, 1)
    assert (row.prompt_tokens, row.completion_tokens) == (event.input_tokens, event.output_tokens)
    assert row.finish_reason == answer[-1].choices[0].finish_reason
    assert row.wait_ms + row.prefill_ms <= row.ttft_ms + 2 <= row.whole_ms + 2, "each is rounded"
    assert row.itl_p95_ms is not None
    assert row.load_ms is None, "a base model loads no adapter"
    stored = b"".join(b"".join(fields.values()) for _, fields in stack.client.xrange(redis_keys.REQUEST_LOG))
    assert SECRET.encode() not in stored
    assert SECRET not in stack.gateway.log.read_text()


def test_a_whole_answer_has_no_times_that_only_a_stream_shows(stack, tenant):
    chat(tenant.sdk(), max_tokens=3)
    row = only_row(stack, tenant)
    assert (row.ttft_ms, row.prefill_ms, row.itl_p95_ms) == (None, None, None)
    assert row.whole_ms >= row.wait_ms


def test_a_refusal_is_a_row_with_its_code_and_limit(stack):
    tenant = stack.tenant(tokens_per_minute=5)
    with pytest.raises(openai.RateLimitError):
        chat(tenant.sdk(), SECRET, max_tokens=100)
    row = only_row(stack, tenant)
    assert (row.outcome, row.code, row.limit) == ("refused", "rate_limit_exceeded", "tenant.tokens_per_minute")
    assert (row.model, row.replica_id, row.completion_tokens) == ("tiny-chat", None, None)


def test_a_model_that_is_no_name_is_not_logged(stack, tenant):
    with pytest.raises(openai.NotFoundError):
        chat(tenant.sdk(), model=SECRET)
    row = only_row(stack, tenant)
    assert (row.outcome, row.code, row.model) == ("refused", "model_not_found", None)


def test_a_stored_answer_that_is_sent_again_is_a_row_of_its_own(stack, tenant):
    again = {"extra_headers": {"Idempotency-Key": "k"}, "max_tokens": 2}
    client = tenant.sdk()
    chat(client, **again)
    chat(client, **again)
    found = wait_until(lambda: (got := rows(stack, tenant))[1:] and got, what="both rows")
    assert sorted(row.outcome for row in found) == ["done", "replayed"]


def test_a_request_of_a_killed_gateway_is_a_row_by_its_last_checkpoint(stack, tenant):
    stack.witness.faults(token_interval_s=0.02, output_tokens=400)
    killed_under_streams(stack, tenant, "doomed", stream=True)
    found = wait_until(lambda: (got := rows(stack, tenant))[3:] and got, what="all rows")
    assert len({row.request_id for row in found}) == len(found) == 4
    assert {(row.outcome, row.estimated, row.whole_ms) for row in found} == {("gateway_gone", True, None)}


def test_every_answer_carries_its_timing(stack, tenant):
    tenant.sdk()
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with httpx.Client(base_url=stack.gateway.url, headers={"authorization": f"Bearer {tenant.key}"}) as http:
        whole = http.post("/v1/chat/completions", json=body)
        streamed = http.post("/v1/chat/completions", json=body | {"stream": True})
        refused = http.post("/v1/chat/completions", json=body | {"model": "missing"})
        listed = http.get("/v1/models")
    names = [re.findall(r"(\w+);dur=\d+", each.headers["server-timing"]) for each in (whole, streamed, refused, listed)]
    assert names == [["queue", "engine", "total"], ["queue", "prefill", "total"], ["total"], ["total"]]
    request_id = refused.headers["x-request-id"]
    [line] = [each for each in access_lines(stack) if each["request_id"] == request_id]
    assert (line["status"], line["code"], line["tenant"], line["path"]) == (
        404, "model_not_found", tenant.id, "/v1/chat/completions",
    )  # fmt: skip


def test_both_logs_can_be_switched_off(stack, tenant):
    settings = {**BRISK, "request_log_entries_max": 0, "gateway_access_log": False}
    with processes.gateway(stack.folder, stack.redis_url, "quiet", **settings) as quiet:
        client = tenant.sdk(quiet.url)
        chat(client, max_tokens=2)
        with pytest.raises(openai.NotFoundError):
            chat(client, model="missing")
        log = quiet.log
    tenant.event()
    assert rows(stack, tenant) == []
    assert '"event":"request"' not in log.read_text().replace(" ", "")
