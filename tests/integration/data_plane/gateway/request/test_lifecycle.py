"""Every successful path through the gateway, with the official SDK, against the witness's journal."""

import threading

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import newest_name
from tests.fixtures.witness.answer import fingerprint
from tests.integration.data_plane.conftest import chat


def assert_billed_as_witnessed(tenant):
    event = tenant.event()
    journal = tenant.stack.witness.journal()[event.request_id]
    assert (event.input_tokens, event.output_tokens) == (journal.prompt_tokens, journal.output_tokens)
    assert event.output_tokens > 0
    assert (event.kv_page_ms, event.kv_measured) == (journal.kv_page_ms, True)
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert tenant.quota()["month_used"] == event.input_tokens + event.output_tokens
    return event, journal


def test_a_chat_is_answered_and_billed_as_witnessed(tenant):
    answer = chat(tenant.sdk(), "The capital of France is", max_tokens=8)
    event, journal = assert_billed_as_witnessed(tenant)
    assert answer.choices[0].message.content == "".join(journal.words)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (event.input_tokens, event.output_tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert (answer.id, answer.model) == (f"chatcmpl-{event.request_id}", "tiny-chat")
    assert (event.outcome, event.cached_tokens, event.adapter_id, event.base_model) == ("done", 3, None, "tiny-chat")


def test_a_chat_is_streamed_and_billed_as_witnessed(tenant):
    chunks = list(chat(tenant.sdk(), stream=True))
    event, journal = assert_billed_as_witnessed(tenant)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "".join(journal.words)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert {(chunk.id, chunk.model) for chunk in chunks} == {(f"chatcmpl-{event.request_id}", "tiny-chat")}


def test_a_stream_shows_its_usage_when_asked(tenant):
    *chunks, last = list(chat(tenant.sdk(), stream=True, stream_options={"include_usage": True}))
    event, _ = assert_billed_as_witnessed(tenant)
    assert all(chunk.usage is None for chunk in chunks)
    assert not last.choices
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (event.input_tokens, event.output_tokens)
    assert last.usage.prompt_tokens_details.cached_tokens == event.cached_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_answered_and_billed_as_witnessed(tenant, stream):
    answer = tenant.sdk().completions.create(model="tiny-chat", prompt="My card was", max_tokens=5, stream=stream)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    _, journal = assert_billed_as_witnessed(tenant)
    assert text == "".join(journal.words)


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_sequences_is_billed_with_its_prompt(tenant, stream):
    answer = chat(
        tenant.sdk(),
        n=3,
        max_tokens=4,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    usage = list(answer)[-1].usage if stream else answer.usage
    event, _ = assert_billed_as_witnessed(tenant)
    assert event.output_tokens == 12
    assert (usage.prompt_tokens, usage.completion_tokens) == (event.input_tokens, 12)
    if not stream:
        assert len(answer.choices) == 3
        assert "token_ids" not in answer.model_dump_json()


def test_each_tenants_adapter_answers_its_own_requests(stack):
    tenants = [stack.tenant() for _ in range(2)]
    routes = [stack.publisher.adapter(tenant.id, "bot") for tenant in tenants]
    for tenant, route in zip(tenants, routes, strict=True):
        client = tenant.sdk()
        wait_until(lambda client=client: len(client.models.list().data) == 2, what="the adapter to be listed")
        answer = chat(client, model="bot")
        assert answer.choices[0].message.content.startswith(fingerprint(newest_name(route)))
        assert answer.model == "bot"
        event, journal = assert_billed_as_witnessed(tenant)
        assert (event.adapter_id, event.revision_id, journal.model) == (
            route.adapter_id,
            route.newest,
            newest_name(route),
        )


def test_engines_receive_internal_names_a_salt_and_no_caller_headers(stack):
    salts = []
    for _ in range(2):
        tenant = stack.tenant()
        stack.publisher.adapter(tenant.id, "bot")
        client = tenant.sdk()
        wait_until(lambda client=client: len(client.models.list().data) == 2)
        smuggled = {
            "X-Request-Id": "victim",
            "X-Vllm-Priority": "-9",
            "X-data-parallel-rank": "7",
            "traceparent": "00-1-1-01",
        }
        for _ in range(2):
            chat(client, model="bot", user="me", extra_headers=smuggled)
        received = [
            one for one in stack.witness.received() if one["received"] in {e.request_id for e in tenant.events()}
        ]
        assert len(received) == 2
        assert received[0]["body"]["cache_salt"] == received[1]["body"]["cache_salt"]
        salts.append(received[0]["body"]["cache_salt"])
        for one in received:
            assert one["body"].keys() == {"model", "messages", "max_tokens", "cache_salt"}
            headers = {name.lower(): value for name, value in one["headers"].items()}
            assert headers["x-request-id"] == one["received"]
            assert not headers.keys() & {"x-vllm-priority", "x-data-parallel-rank", "traceparent"}
            assert tenant.key not in str(one)
    assert len(set(salts)) == 2
    assert all(len(salt) == 64 for salt in salts)


def test_during_a_rotation_of_the_salt_both_gateways_serve_and_only_the_salt_differs(stack, tmp_path):
    """One gateway has been restarted with the new secret, the other not yet."""
    tenant = stack.tenant()
    stack.publisher.adapter(tenant.id, "bot")
    settings = {"salt_secret": "next-salt-secret-of-the-tests"}
    with processes.gateway(tmp_path, stack.redis_url, "rotated", **settings) as rotated:
        clients = [tenant.sdk(stack.gateway.url), tenant.sdk(rotated.url)]
        for client in clients:
            wait_until(lambda client=client: len(client.models.list().data) == 2, what="the adapter")
        asked = [chat(client, "The capital", model="bot", max_tokens=8) for client in clients * 2]
        events = wait_until(lambda: len(found := tenant.events()) == 4 and found, what="usage events")
        wait_until(tenant.holds_nothing, what="holds to be released")
    assert all(answer.choices[0].message.content for answer in asked)
    assert {(event.outcome, event.input_tokens) for event in events} == {("done", asked[0].usage.prompt_tokens)}
    of_tenant = {event.request_id for event in events}
    bodies = [one["body"] for one in stack.witness.received() if one["received"] in of_tenant]
    salts = [body.pop("cache_salt") for body in bodies]
    assert bodies == [bodies[0]] * 4
    assert (salts[0], salts[1]) == (salts[2], salts[3]), "each gateway keeps its own"
    assert salts[0] != salts[1]


def test_engine_internals_are_not_shown(stack, tenant):
    route = stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: len(client.models.list().data) == 2)
    body = {"model": "bot", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=stack.gateway.url, headers=headers) as http:
        for stream in (False, True):
            text = http.post("/v1/chat/completions", json={**body, "stream": stream}).text
            assert text.count('"model":"bot"') >= 1
            for secret in (
                route.adapter_id,
                route.revisions[route.newest].digest,
                "secret",
                "fingerprint",
                "stop_token",
                "cached_prompt",
            ):
                assert secret not in text
        models = http.get("/v1/models").text
        assert route.adapter_id not in models


def test_tokenize_counts_the_prompt_tokens_that_are_billed(stack, tenant):
    client = tenant.sdk()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of Italy? 🏛"},
    ]
    counted = client.post("/tokenize", body={"model": "tiny-chat", "messages": messages}, cast_to=dict)
    assert counted["max_model_len"] == 4096
    client.chat.completions.create(model="tiny-chat", messages=messages)
    assert tenant.event().input_tokens == counted["count"]
    prompt = client.post("/tokenize", body={"model": "tiny-chat", "prompt": "capital"}, cast_to=dict)
    assert 0 < prompt["count"] < counted["count"]


def test_answers_carry_a_request_id_and_the_rate_limits(stack):
    tenant = stack.tenant(requests_per_minute=60, tokens_per_minute=6000)
    raw = tenant.sdk().chat.completions.with_raw_response.create(
        model="tiny-chat", messages=[{"role": "user", "content": "hi"}], max_tokens=4
    )  # fmt: skip
    assert raw.headers["x-request-id"] == tenant.event().request_id
    assert raw.headers["x-ratelimit-limit-requests"] == "60"
    assert raw.headers["x-ratelimit-remaining-requests"] == "59"
    assert 5900 < int(raw.headers["x-ratelimit-remaining-tokens"]) < 6000
    assert raw.headers["x-ratelimit-reset-requests"] in ("1s", "999ms", "1000ms")


def test_many_mixed_requests_at_once_agree_with_the_witness(stack):
    tenants = [stack.tenant() for _ in range(4)]
    for tenant in tenants:
        stack.publisher.adapter(tenant.id, "bot")
    clients = [tenant.sdk() for tenant in tenants]
    wait_until(lambda: all(len(client.models.list().data) == 2 for client in clients))
    failures: list[openai.OpenAIError] = []
    finished: list[int] = []

    def run(number: int) -> None:
        client, stream = clients[number % 4], number % 3 == 0
        try:
            answer = chat(client, f"{number}", model="bot" if number % 2 else "tiny-chat", stream=stream)
            if stream:
                list(answer)
            finished.append(number)
        except openai.OpenAIError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(finished) == 40
    journal = stack.witness.journal()
    events = [event for tenant in tenants for event in tenant.events()]
    assert len(events) == len({event.request_id for event in events}) == 40
    for event in events:
        witnessed = journal[event.request_id]
        assert (event.input_tokens, event.output_tokens) == (witnessed.prompt_tokens, witnessed.output_tokens)
        assert (event.adapter_id or "tiny-chat") in witnessed.model
    assert all(tenant.holds_nothing() for tenant in tenants)
    assert stack.held_pages() == 0


def test_every_token_the_engine_counted_is_in_an_event(stack):
    prompt, generation = stack.witness.counters()
    events = stack.events()
    assert (sum(e.input_tokens for e in events), sum(e.output_tokens for e in events)) == (prompt, generation)


def test_health_and_readiness_are_reported(stack):
    assert httpx.get(f"{stack.gateway.url}/livez").json() == {"status": "alive"}
    ready = httpx.get(f"{stack.gateway.url}/readyz").json()
    assert (ready["ready"], ready["current"]) == (True, True)
