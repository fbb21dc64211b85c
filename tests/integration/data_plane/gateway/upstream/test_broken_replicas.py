"""Replicas that break off, stall, never start or die: the caller gets an error and pays for the tokens it received."""

import json
import threading
import time

import httpx
import openai
import pytest

from core import redis_keys
from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures import processes
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.conftest import BRISK, assert_settled, chat, slowly


def test_an_engine_that_ignores_an_abort_is_cut_off_and_billed_by_its_last_running_count(stack, tenant):
    slowly(stack, deaf=True, token_interval_s=0.2)
    stream = chat(tenant.sdk(), stream=True, max_tokens=400)
    next(iter(stream))
    stream.close()
    event = tenant.event()
    assert event.outcome == "client_gone"
    journal = stack.witness.journal()[event.request_id]
    assert 0 <= journal.output_tokens - event.output_tokens <= 3  # tokens in flight when the connection was cut
    wait_until(tenant.holds_nothing)


def test_a_stream_that_a_replica_breaks_off_is_reported_to_the_caller_and_billed_so_far(stack, tenant):
    slowly(stack, cut_after=6)
    text = ""
    try:
        for chunk in chat(tenant.sdk(), stream=True):
            text += chunk.choices[0].delta.content or ""
    except (openai.APIError, httpx.RemoteProtocolError):
        pass
    else:
        pytest.fail("the broken stream looked whole")
    _, journal = assert_settled(tenant, "replica_gone")
    assert text == "".join(journal.words)


def test_the_last_event_of_a_broken_stream_is_an_error_and_not_done(stack, tenant):
    slowly(stack, error_after=3)  # at once with the third token
    tenant.sdk()
    headers = {"Authorization": f"Bearer {tenant.key}"}
    response = httpx.post(stack.gateway.url + "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
    events = response.text.strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("replica_failed", "server_error")
    assert "[DONE]" not in response.text
    assert "secret" not in response.text
    _, journal = assert_settled(tenant, "replica_gone")
    words = [json.loads(each.removeprefix("data: "))["choices"][0]["delta"]["content"] for each in events[:-1]]
    assert "".join(words) == "".join(journal.words)


@pytest.mark.parametrize("odd", ['{"choices":[],"usage":7}', '{"choices":' + "[" * 100_000])
def test_an_invalid_event_breaks_the_stream_and_not_the_bill(stack, tenant, odd):
    slowly(stack, error_after=5, error=odd)
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), stream=True))
    event, _ = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 5


def test_a_stream_without_its_final_count_is_billed_by_the_running_count(stack, tenant):
    slowly(stack, final_usage=False, output_tokens=5)
    with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
        list(chat(tenant.sdk(), stream=True))
    event, _ = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 5


def test_a_stalled_stream_ends_in_time(stack, tenant, promised_s):
    slowly(stack, held=True)
    began = time.monotonic()
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), stream=True))
    assert (
        BRISK["inter_token_s"] <= time.monotonic() - began < BRISK["inter_token_s"] + BRISK["abort_s"] + promised_s(2)
    )
    wait_until(tenant.events, what="a usage event")
    event = tenant.event()
    assert (event.outcome, event.output_tokens) == ("timeout", 1)
    wait_until(tenant.holds_nothing)


@pytest.mark.parametrize("hung", [{"held": True}, {"hang": True}], ids=["in mid-stream", "before a token"])
def test_a_hung_replicas_circuit_opens_before_its_abort_has_failed(stack, tenant, hung):
    slowly(stack, deaf=True, output_tokens=4, **hung)
    once = {**BRISK, "first_byte_s": 1, "inter_token_s": 1, "abort_s": 15, "breaker_failures": 1}
    with processes.gateway(stack.folder, stack.redis_url, "hasty", **once) as hasty:
        client = tenant.sdk(hasty.url)
        ended = threading.Event()

        def call() -> None:
            with pytest.raises(openai.APIError):
                list(chat(client, stream=True))
            ended.set()

        calling = threading.Thread(target=call)
        calling.start()
        wait_until(lambda: hasty.metric("tenora_gateway_open_circuits") == 1, what="the breaker to open")
        assert not ended.is_set()
        stack.witness.faults()
        if "held" in hung:
            stack.witness.release(1)
        calling.join()
    wait_until(tenant.holds_nothing)


def test_a_whole_answer_leaves_an_engine_that_has_stopped_counting_tokens(stack, tenant):
    """It holds its socket and its pages, so its KV page-time grows while it hangs, and says that it is healthy."""
    name, settings = "tenora_gateway_stalled_answers_total", {**BRISK, "engine_stalled_s": 1, "abort_s": 1}
    with processes.gateway(stack.folder, stack.redis_url, "stalled", **settings) as gateway:
        client = tenant.sdk(gateway.url)
        stack.witness.faults(hang=True, deaf=True)
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, max_tokens=1)
        assert (caught.value.status_code, caught.value.code) == (502, "replica_timeout")
        assert gateway.metric(name) == 1
        stack.witness.faults()
        wait_until(tenant.holds_nothing)
    assert tenant.events() == []


def test_a_replica_that_never_starts_an_answer_times_out(stack, tenant):
    slowly(stack, hang=True)
    with pytest.raises(openai.InternalServerError) as caught:
        list(chat(tenant.sdk(), stream=True))
    assert (caught.value.status_code, caught.value.code) == (502, "replica_timeout")
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []


def test_a_replica_killed_in_the_middle_of_many_streams(stack):
    """Tokens up to the last one that arrived are billed; the witness wrote at most one more."""
    folder, url = stack.folder, stack.redis_url
    with processes.witness(folder, url, "rep_doomed", base_model="doomed") as doomed:
        stack.publisher.base_model(tiny_route("doomed"))
        tenant = stack.tenant()
        client = tenant.sdk()
        doomed.faults(token_interval_s=0.02, output_tokens=400)
        wait_until(lambda: len(client.models.list().data) == 2)
        wait_until(lambda: stack.client.exists(redis_keys.replica("rep_doomed")))
        time.sleep(0.2)
        errors: list[Exception] = []

        def run() -> None:
            try:
                list(chat(client, model="doomed", stream=True, max_tokens=400))
            except (openai.APIError, httpx.HTTPError) as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(10)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(doomed.journal()) == 10 and all(j.output_tokens > 3 for j in doomed.journal().values()))
        doomed.kill()
        for thread in threads:
            thread.join()
    assert len(errors) == 10
    events = wait_until(lambda: len(tenant.events()) == 10 and tenant.events(), what="ten events")
    journal = doomed.journal()
    for event in events:
        assert event.outcome == "replica_gone"
        assert 0 <= journal[event.request_id].output_tokens - event.output_tokens <= 1
        assert event.input_tokens == journal[event.request_id].prompt_tokens
    wait_until(tenant.holds_nothing)
    stack.publisher.put("base_models", "doomed", None)


def test_an_engines_error_text_is_not_logged(stack, tenant):
    """It may quote the prompt."""
    client = tenant.sdk()
    stack.witness.faults(status=400)
    before = len(stack.gateway.log.read_text())
    with pytest.raises(openai.BadRequestError):
        chat(client)
    (line,) = (line for line in stack.gateway.log.read_text()[before:].splitlines() if "request refused by" in line)
    assert "secret of the engine" not in line
    assert json.loads(line)["bytes"] > 0


@pytest.mark.parametrize(
    ("faults", "log_event"),
    [({"status": 500}, "request refused by replica"), ({"cut_before": True}, "replica unreachable")],
)
def test_log_lines_of_a_request_carry_its_id(stack, tenant, faults, log_event):
    client = tenant.sdk()
    stack.witness.faults(**faults)
    before = len(stack.gateway.log.read_text())
    with pytest.raises(openai.InternalServerError) as refused:
        chat(client)
    lines = [json.loads(line) for line in stack.gateway.log.read_text()[before:].splitlines() if log_event in line]
    assert [line["request_id"] for line in lines] == [refused.value.response.headers["x-request-id"]]
