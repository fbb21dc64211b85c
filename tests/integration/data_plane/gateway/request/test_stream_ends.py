"""However a caller disconnects, it is billed for the tokens in the witness's journal and holds nothing afterwards."""

import json
import time

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures import processes
from tests.fixtures.faults import callers
from tests.integration.data_plane.conftest import BRISK, assert_settled, chat, connections_of, slowly


@pytest.mark.parametrize("after", [0, 7])
def test_a_caller_that_disconnects_from_a_stream_pays_for_the_produced_tokens(stack, tenant, after, promised_s):
    slowly(stack)
    stream = chat(tenant.sdk(), stream=True, max_tokens=400)
    chunks = iter(stream)
    for _ in range(after + 1):
        next(chunks)
    stream.close()
    hung_up = time.monotonic()
    event, journal = assert_settled(tenant, "client_gone")
    assert time.monotonic() - hung_up < promised_s(1.5)  # 400 tokens would take eight seconds
    assert after <= event.output_tokens < 200
    assert event.cached_tokens == 3  # the engine's final count arrived
    time.sleep(0.1)
    assert stack.witness.journal()[event.request_id].output_tokens == journal.output_tokens


def test_a_caller_that_disconnects_from_a_whole_answer_pays_for_the_produced_tokens(stack, tenant):
    slowly(stack)
    client = tenant.sdk().with_options(timeout=1)
    with pytest.raises(openai.APITimeoutError):
        chat(client, max_tokens=400)
    event, _ = assert_settled(tenant, "client_gone")
    assert 1 <= event.output_tokens < 200


@pytest.mark.parametrize(
    ("prefilled", "part", "stream"),
    [(1_000_000, None, True), (5, 5, False), (0, 0, True), (None, None, False)],
    ids=["all of it", "a part", "nothing", "no report"],
)
def test_a_caller_that_disconnects_during_the_prefill_pays_for_it(stack, tenant, stream, prefilled, part):
    """``part`` is the number of prompt tokens to pay for, None for all of them."""
    slowly(stack, hang=True, prefilled=prefilled)
    with pytest.raises(openai.APITimeoutError):
        list(chat(tenant.sdk().with_options(timeout=1), stream=stream))
    event = tenant.event()
    wait_until(tenant.holds_nothing, what="holds to be released")
    month_used = tenant.quota().get("month_used", 0)
    stack.witness.faults()
    prompt_tokens = chat(tenant.sdk()).usage.prompt_tokens
    assert (event.outcome, event.output_tokens, event.cached_tokens) == ("client_gone", 0, 0)
    assert event.input_tokens == event.aborted_prefill_tokens == (prompt_tokens if part is None else part)
    assert (event.kv_page_ms > 0) == bool(prefilled), "without a report, what was held is unknown"
    assert event.kv_measured == (prefilled is not None)
    assert month_used == event.input_tokens


ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
}


@pytest.mark.parametrize(
    ("path", "sequences", "prefilled", "stream"),
    [
        ("/v1/chat/completions", 3, 0, False),
        ("/v1/completions", 3, None, False),
        ("/v1/messages", 1, None, True),
    ],
)
def test_an_abandoned_prompt_is_charged_once_for_each_sequence_on_every_route(
    stack, tenant, path, sequences, prefilled, stream
):
    tenant.sdk()
    body = {"model": "tiny-chat", "stream": stream, **ROUTES[path]}
    if sequences > 1:
        body["n"] = sequences
    with httpx.Client(base_url=stack.gateway.url, headers={"authorization": f"Bearer {tenant.key}"}) as http:
        http.post(path, json={**body, "stream": False, "n": 1, "max_tokens": 1} if sequences > 1 else
                  {**body, "stream": False, "max_tokens": 1}).raise_for_status()  # fmt: skip
        prompt_tokens = tenant.event().input_tokens
        slowly(stack, hang=True, prefilled=prefilled)
        with pytest.raises(httpx.ReadTimeout):
            http.post(path, json=body, timeout=1)
    event = wait_until(lambda: len(events := tenant.events()) == 2 and events[-1], what="a usage event")
    wait_until(tenant.holds_nothing, what="holds to be released")
    charged = 0 if prefilled == 0 else prompt_tokens * sequences
    assert (event.outcome, event.output_tokens, event.cached_tokens) == ("client_gone", 0, 0)
    assert event.input_tokens == event.aborted_prefill_tokens == charged
    assert tenant.quota()["month_used"] == charged + prompt_tokens + 1


@pytest.fixture(scope="module")
def impatient(module_stack):
    """A gateway that soon ends a request and an answer that is not read, and buffers little of it."""
    settings = {
        "request_s": 1.5, "first_byte_s": 60, "abort_s": 1, "last_write_s": 0.5, "client_min_bytes_per_s": 100_000,
        "client_send_buffer_bytes": 4096, "client_write_buffer_max_bytes": 1024,
    }  # fmt: skip
    with processes.gateway(module_stack.folder, module_stack.redis_url, "impatient", **BRISK | settings) as gateway:
        yield gateway


def test_a_prefill_that_the_platform_ends_without_a_report_costs_nothing(stack, tenant, impatient):
    slowly(stack, hang=True, prefilled=None)
    with pytest.raises(openai.APIStatusError):
        chat(tenant.sdk(impatient.url), stream=True)
    event = tenant.event()
    assert (event.outcome, event.input_tokens, event.kv_page_ms) == ("timeout", 0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_after_a_long_body_sent_in_pieces_is_noticed(stack, tenant, stream, promised_s):
    slowly(stack)
    tenant.sdk()
    body = json.dumps({**CHAT, "stream": stream, "max_tokens": 400}).encode() + b" " * 100_000
    before = len(stack.witness.journal())
    with callers.callers(stack.gateway.url, 1, callers.head(tenant.key, len(body))) as (connection,):
        time.sleep(0.05)  # a separate piece
        connection.sendall(body)
        wait_until(lambda: len(stack.witness.journal()) > before, what="the engine to begin")
    hung_up = time.monotonic()
    event, _ = assert_settled(tenant, "client_gone")
    assert time.monotonic() - hung_up < promised_s(1.5)
    assert event.output_tokens < 200


def test_a_caller_that_resets_the_connection_counts_as_disconnected(stack, tenant):
    slowly(stack)
    tenant.sdk()
    asked = callers.request(tenant.key, stream=True, max_tokens=400)
    with callers.callers(stack.gateway.url, 1, asked) as (connection,):
        callers.begun(connection)
        callers.reset(connection)
    assert_settled(tenant, "client_gone")


def test_a_caller_that_stops_reading_is_disconnected(stack, tenant):
    """The kernel's buffers fill, writes stall, and the caller counts as disconnected."""
    slowly(stack, token_interval_s=0, output_tokens=1024)
    tenant.sdk()
    asked = callers.request(tenant.key, stream=True, n=4, max_tokens=1024)
    with callers.callers(stack.gateway.url, 1, asked, receive_bytes=2048):
        event = wait_until(tenant.events, timeout_s=15, what="a usage event")[0]
    journal = stack.witness.journal()[event.request_id]
    assert (event.input_tokens, event.output_tokens) == (journal.prompt_tokens, journal.output_tokens)
    wait_until(tenant.holds_nothing)


def test_an_answer_whose_end_the_caller_does_not_read_is_freed(stack, tenant, impatient):
    slowly(stack, token_interval_s=0, output_tokens=1024)
    tenant.sdk(impatient.url)
    asked, before = callers.request(tenant.key, n=4, max_tokens=1024), len(stack.witness.journal())
    with callers.callers(impatient.url, 1, asked, receive_bytes=2048) as (connection,):
        mine = connection.getsockname()[1]
        wait_until(lambda: len(stack.witness.journal()) > before, what="the engine to answer what was accepted")
        wait_until(
            lambda: mine not in {remote for _, remote in connections_of(impatient.process)},
            timeout_s=10, what="the gateway to hang up",
        )  # fmt: skip
        assert tenant.event().output_tokens > 0
