"""Whatever ends a request, it is billed what the witness's journal says was produced, and holds nothing after."""

import json
import signal
import socket
import threading
import time

import httpx
import openai
import pytest

from core import keys
from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures import processes
from tests.fixtures.tiny_tokenizer import tiny_route
from tests.integration.data_plane.conftest import BRISK, chat


def assert_settled(tenant, outcome: str, witness=None):
    """The one event agrees with the journal, which grows no more."""
    event = wait_until(tenant.events, what="a usage event")[0]
    assert event.outcome == outcome
    journal = (witness or tenant.stack.witness).journal()[event.request_id]
    assert (event.input_tokens, event.output_tokens) == (journal.prompt_tokens, journal.output_tokens)
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert len(tenant.events()) == 1
    return event, journal


def slowly(stack, **faults: object) -> None:
    stack.witness.faults(**{"token_interval_s": 0.02, "output_tokens": 400, **faults})


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_caller_who_hangs_up_on_a_stream_pays_for_what_was_produced(stack, tenant, after):
    slowly(stack)
    stream = chat(tenant.sdk(), stream=True, max_tokens=400)
    chunks = iter(stream)
    for _ in range(after + 1):
        next(chunks)
    stream.close()
    hung_up = time.monotonic()
    event, journal = assert_settled(tenant, "client_gone")
    assert time.monotonic() - hung_up < 1.5  # 400 tokens would take eight seconds
    assert after <= event.output_tokens < 200
    assert event.cached_tokens == 3  # the engine's last word came through
    time.sleep(0.1)
    assert stack.witness.journal()[event.request_id].output_tokens == journal.output_tokens


def test_a_caller_who_hangs_up_on_a_whole_answer_pays_for_what_was_produced(stack, tenant):
    slowly(stack)
    client = tenant.sdk().with_options(timeout=0.4)
    with pytest.raises(openai.APITimeoutError):
        chat(client, max_tokens=400)
    event, _ = assert_settled(tenant, "client_gone")
    assert 1 <= event.output_tokens < 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_hangs_up_before_the_first_token_pays_nothing(stack, tenant, stream):
    slowly(stack, hang=True)
    client = tenant.sdk().with_options(timeout=0.4)
    with pytest.raises(openai.APITimeoutError):
        list(chat(client, stream=stream))
    event, _ = assert_settled(tenant, "client_gone")
    assert (event.input_tokens, event.output_tokens, event.kv_page_ms) == (0, 0, 0)


def test_several_sequences_abandoned_are_each_counted(stack, tenant):
    slowly(stack)
    stream = chat(tenant.sdk(), stream=True, max_tokens=400, n=3)
    chunks = iter(stream)
    for _ in range(12):
        next(chunks)
    stream.close()
    event, _ = assert_settled(tenant, "client_gone")
    assert event.output_tokens >= 9


def test_a_caller_who_resets_the_connection_is_gone_as_well(stack, tenant):
    slowly(stack)
    tenant.sdk()
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 400}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tenant.key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(head.encode() + body)
    assert b"200 OK" in connection.recv(4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    assert_settled(tenant, "client_gone")


def test_a_deaf_engine_is_cut_off_and_billed_by_its_last_running_count(stack, tenant):
    slowly(stack, deaf=True, token_interval_s=0.05)
    stream = chat(tenant.sdk(), stream=True, max_tokens=400)
    next(iter(stream))
    stream.close()
    event = tenant.event()
    assert event.outcome == "client_gone"
    journal = stack.witness.journal()[event.request_id]
    assert 0 <= journal.output_tokens - event.output_tokens <= 3  # what was on the way when the line was cut
    wait_until(tenant.holds_nothing)


def test_a_replica_that_breaks_off_is_told_to_the_caller_and_billed_so_far(stack, tenant):
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
    slowly(stack, error_after=3)
    tenant.sdk()
    headers = {"Authorization": f"Bearer {tenant.key}"}
    response = httpx.post(stack.gateway.url + "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
    events = response.text.strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("replica_failed", "server_error")
    assert "[DONE]" not in response.text
    assert "secret" not in response.text
    assert_settled(tenant, "replica_gone")


@pytest.mark.parametrize("usage", [{}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}])
@pytest.mark.parametrize("odd", ['{"choices":[1]}', '{"choices":[],"usage":7}', '{"choices":' + "[" * 100_000])
def test_an_event_that_no_engine_sends_breaks_the_stream_and_not_the_bill(stack, tenant, odd, usage):
    slowly(stack, error_after=5, error=odd)
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), stream=True, **usage))
    event, _ = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 5


def test_a_stream_without_its_final_count_is_billed_by_the_running_one(stack, tenant):
    slowly(stack, final_usage=False, output_tokens=5)
    with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
        list(chat(tenant.sdk(), stream=True))
    event, _ = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 5


def test_a_stream_that_stands_still_ends_in_time(stack, tenant):
    slowly(stack, token_interval_s=30)
    began = time.monotonic()
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), stream=True))
    assert BRISK["inter_token_s"] <= time.monotonic() - began < BRISK["inter_token_s"] + BRISK["abort_s"] + 2
    wait_until(tenant.events, what="a usage event")
    event = tenant.event()
    assert (event.outcome, event.output_tokens) == ("timeout", 1)
    wait_until(tenant.holds_nothing)


def test_a_replica_that_never_begins_is_given_up(stack, tenant):
    slowly(stack, hang=True)
    with pytest.raises(openai.InternalServerError) as caught:
        list(chat(tenant.sdk(), stream=True))
    assert (caught.value.status_code, caught.value.code) == (502, "replica_timeout")
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []


def test_a_reader_who_stops_reading_is_cut_off(stack, tenant):
    """The kernel's buffers fill, writes stall, and that counts as gone."""
    slowly(stack, token_interval_s=0, output_tokens=1024)
    tenant.sdk()
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    body = json.dumps({**CHAT, "stream": True, "n": 4, "max_tokens": 1024}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tenant.key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(5)
    connection.connect((host, int(port)))
    connection.sendall(head.encode() + body)
    event = wait_until(tenant.events, timeout_s=15, what="a usage event")[0]
    connection.close()
    journal = stack.witness.journal()[event.request_id]
    assert (event.input_tokens, event.output_tokens) == (journal.prompt_tokens, journal.output_tokens)
    wait_until(tenant.holds_nothing)


def test_a_replica_killed_in_the_middle_of_many_streams(stack):
    """Its tokens up to the last one that reached us are billed; the witness wrote at most one more besides."""
    folder, url = stack.folder, stack.redis_url
    with processes.witness(folder, url, "rep_doomed", base_model="doomed") as doomed:
        stack.publisher.base_model(tiny_route("doomed"))
        tenant = stack.tenant()
        client = tenant.sdk()
        doomed.faults(token_interval_s=0.02, output_tokens=400)
        wait_until(lambda: len(client.models.list().data) == 2)
        wait_until(lambda: stack.client.exists(keys.replica("rep_doomed")))
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


def test_sigterm_lets_running_streams_end(stack, tenant):
    slowly(stack, output_tokens=50)
    with processes.gateway(stack.folder, stack.redis_url, "leaving", **BRISK) as leaving:
        streams = [chat(tenant.sdk(leaving.url), stream=True) for _ in range(5)]
        chunks = [iter(stream) for stream in streams]
        for one in chunks:
            next(one)
        leaving.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(openai.APIConnectionError):
            openai.OpenAI(base_url=leaving.url + "/v1", api_key=tenant.key, max_retries=0).models.list()
        for one in chunks:
            assert list(one)[-1].choices[0].finish_reason == "stop"
        assert leaving.process.wait(10) == 0
    assert [event.outcome for event in tenant.events()] == ["done"] * 5
    assert tenant.holds_nothing()


def test_sigterm_settles_what_does_not_end_in_time(stack, tenant):
    slowly(stack, output_tokens=1000)
    with processes.gateway(stack.folder, stack.redis_url, "hurried", **{**BRISK, "gateway_drain_s": 1}) as hurried:
        chunks = iter(chat(tenant.sdk(hurried.url), stream=True))
        next(chunks)
        hurried.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="stopping"):
            list(chunks)
        assert hurried.process.wait(10) == 0
    assert_settled(tenant, "timeout")
    assert len(list((stack.folder / "journal").rglob("*.lock"))) == 1  # of the gateway that goes on


def test_a_killed_gateway_leaks_nothing(stack):
    tenant = stack.tenant(concurrent_requests=3)
    slowly(stack, output_tokens=400)
    with processes.gateway(stack.folder, stack.redis_url, "killed", **BRISK) as killed:
        client = tenant.sdk(killed.url)
        streams = [chat(client, stream=True, max_tokens=400) for _ in range(3)]
        for stream in streams:
            next(iter(stream))
        assert tenant.quota()["concurrent"] == 3
        killed.process.kill()
        killed.process.wait()
        for stream in streams:
            stream.close()
    stack.witness.faults()
    client = tenant.sdk()
    # Leases are given back by the tenant's next reservation after they ran out.
    wait_until(lambda: _served(client) and tenant.holds_nothing(), timeout_s=BRISK["lease_s"] + 3, what="all leases")
    assert int(stack.client.hget(keys.replica_held_pages("rep_one"), "total")) == 0


def _served(client: openai.OpenAI) -> bool:
    try:
        return bool(chat(client, max_tokens=1).choices)
    except openai.RateLimitError:
        return False


def test_leases_outlive_a_request_that_is_longer_than_they_are(stack, tenant):
    slowly(stack, output_tokens=150)  # three seconds, with leases of two
    stream = chat(tenant.sdk(), stream=True)
    chunks = iter(stream)
    next(chunks)
    time.sleep(BRISK["lease_s"] + 0.2)
    other = stack.tenant()
    chat(other.sdk(), max_tokens=1)  # another reservation on the replica looks for expired ones
    assert tenant.quota()["concurrent"] == 1
    assert int(stack.client.hget(keys.replica_held_pages("rep_one"), "total")) > 0
    list(chunks)
    assert_settled(tenant, "done")


@pytest.mark.parametrize(
    ("faults", "said"),
    [({"status": 500}, "replica refused a request"), ({"cut_before": True}, "replica could not be reached")],
)
def test_what_is_logged_while_a_request_is_served_carries_its_id(stack, tenant, faults, said):
    client = tenant.sdk()
    stack.witness.faults(**faults)
    before = len(stack.gateway.log.read_text())
    with pytest.raises(openai.InternalServerError) as refused:
        chat(client)
    lines = [json.loads(line) for line in stack.gateway.log.read_text()[before:].splitlines() if said in line]
    assert [line["request_id"] for line in lines] == [refused.value.response.headers["x-request-id"]]
