"""Anthropic's Messages API with Anthropic's own SDK: the same request life cycle in that API's format."""

import json

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from tests.conftest import wait_until
from tests.integration.data_plane.conftest import Tenant, assert_settled, slowly

HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather somewhere.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    }
]
WEATHER = {"city": "amber", "days": 7}


@pytest.fixture
def claude(stack, tenant):
    """The SDK with a key that the gateway knows."""
    return sdk_of(tenant)


def sdk_of(tenant: Tenant) -> anthropic.Anthropic:
    tenant.sdk()
    client = anthropic.Anthropic(base_url=tenant.stack.gateway.url, api_key=tenant.key, max_retries=0, timeout=20)
    tenant.stack.opened.callback(client.close)
    return client


def ask(client: anthropic.Anthropic, **fields: object) -> anthropic.types.Message:
    return client.messages.create(**{"model": "tiny-chat", "max_tokens": 64, "messages": HI, **fields})


def words_of(tenant: Tenant) -> str:
    return "".join(tenant.stack.witness.journal()[tenant.event().request_id].words)


def test_a_message_is_answered_and_billed_as_witnessed(claude, tenant):
    answer = ask(claude)
    event = tenant.event()
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny-chat")
    assert answer.id == f"msg_{event.request_id}"
    assert [(block.type, block.text) for block in answer.content] == [("text", words_of(tenant))]
    usage = answer.usage
    assert (usage.cache_read_input_tokens, usage.output_tokens) == (event.cached_tokens, event.output_tokens)
    assert usage.input_tokens + usage.cache_read_input_tokens == event.input_tokens
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert ask(claude, max_tokens=2).stop_reason == "max_tokens"


def test_a_stream_is_the_sequence_of_events_that_the_sdk_knows(claude, tenant):
    with claude.messages.stream(model="tiny-chat", max_tokens=64, messages=HI) as stream:
        events = [event for event in stream if event.type != "text"]
        final = stream.get_final_message()
    kinds = [event.type for event in events]
    event = tenant.event()
    deltas = kinds.count("content_block_delta")
    assert deltas == event.output_tokens
    assert kinds == ["message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
                     "message_delta", "message_stop"]  # fmt: skip
    assert final.content[0].text == words_of(tenant)
    assert final.stop_reason == "end_turn"
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == event.input_tokens
    assert final.usage.output_tokens == event.output_tokens
    begun = events[0].message.usage
    assert begun.cache_read_input_tokens == final.usage.cache_read_input_tokens == event.cached_tokens > 0
    assert begun.input_tokens == final.usage.input_tokens


def test_a_caller_that_disconnects_from_a_message_pays_for_the_produced_tokens(stack, claude, tenant):
    slowly(stack)
    with claude.messages.create(model="tiny-chat", max_tokens=400, messages=HI, stream=True) as stream:
        kinds = (event.type for event in stream)
        assert "content_block_delta" in kinds
    event, _ = assert_settled(tenant, "client_gone")
    assert 1 <= event.output_tokens < 200
    assert event.cached_tokens == 3


def test_a_message_stream_has_named_events_and_a_ping(stack, claude, tenant):
    headers = {"x-api-key": tenant.key, "anthropic-version": "2023-06-01"}
    body = {"model": "tiny-chat", "max_tokens": 4, "messages": HI, "stream": True}
    answer = httpx.post(f"{stack.gateway.url}/v1/messages", json=body, headers=headers)
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    assert [name for name, _ in events][:3] == ["event: message_start", "event: ping", "event: content_block_start"]
    for name, data in events:
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
    start = json.loads(events[0][1].removeprefix("data: "))["message"]
    assert start["usage"]["input_tokens"] > 0
    assert start["usage"]["output_tokens"] == 0
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_tokens_are_counted_as_they_are_billed(claude, tenant):
    fields = {"model": "tiny-chat", "messages": HI, "system": "Be brief.", "tools": TOOLS}
    counted = claude.messages.count_tokens(**fields).input_tokens
    claude.messages.create(max_tokens=3, **fields)
    assert tenant.event().input_tokens == counted


def test_a_prefilled_answer_is_continued_and_counted_as_it_is_billed(claude, stack, tenant):
    turns = [*HI, {"role": "assistant", "content": "The answer is ("}]
    counted = claude.messages.count_tokens(model="tiny-chat", messages=turns).input_tokens
    assert ask(claude, messages=turns).content
    body = stack.witness.received()[-1]["body"]
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    event = tenant.event()
    assert event.input_tokens == counted == stack.witness.journal()[event.request_id].prompt_tokens


class Weather(BaseModel):
    a: int


def test_the_sdks_helpers_and_beta_endpoints_work_as_they_are(claude):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather somewhere."""
        return f"sunny in {city}"

    fields = {"model": "tiny-chat", "max_tokens": 64}
    assert claude.messages.parse(output_format=Weather, messages=HI, **fields).parsed_output == Weather(a=7)
    assert claude.beta.messages.parse(output_format=Weather, messages=HI, **fields).parsed_output == Weather(a=7)
    direct = {"anthropic-dangerous-direct-browser-access": "true"}
    answer = claude.beta.messages.create(messages=HI, betas=["context-1m-2025-08-07"], extra_headers=direct, **fields)
    assert claude.beta.messages.create(messages=[*HI, answer.to_param(), *HI], **fields).content
    asked = [{"role": "user", "content": "get_weather please"}]
    runner = claude.beta.messages.tool_runner(tools=[get_weather], messages=asked, **fields)
    assert [message.stop_reason for message in runner] == ["tool_use", "end_turn"]


def test_models_are_listed_in_pages_and_found_by_id(claude, tenant):
    everything = [model.id for model in claude.models.list()]
    assert "tiny-chat" in everything
    assert [model.id for model in claude.models.list(limit=1)] == everything, "the SDK asks for one page after another"
    found = claude.models.retrieve("tiny-chat")
    assert (found.type, found.id, found.display_name, found.lifecycle) == ("model", *["tiny-chat"] * 2, "active")
    assert (found.max_input_tokens > 0, found.created_at.year >= 1970) == (True, True)
    assert claude.beta.models.retrieve("tiny-chat").id == "tiny-chat"


def test_errors_of_the_models_route_have_the_sdks_types(claude):
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.models.retrieve("no-such-bot")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        claude.models.list(limit=1001)
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="tnr_live_nonsense").models.list()


def test_errors_have_the_sdks_types(stack, claude, tenant):
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(claude, model="no-such-bot")
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"]
    stranger = claude.with_options(api_key="tnr_live_nonsense")
    with pytest.raises(anthropic.AuthenticationError):
        ask(stranger)
    spent = stack.tenant(tokens_per_month=10)
    with pytest.raises(anthropic.APIStatusError) as quota:
        ask(sdk_of(spent))
    assert (quota.value.status_code, quota.value.body["error"]["type"]) == (402, "billing_error")
    stack.witness.faults(status=500)
    with pytest.raises(anthropic.InternalServerError):
        ask(claude)


def test_rate_limits_are_shown_as_anthropic_shows_them(stack):
    client = sdk_of(stack.tenant(requests_per_minute=60, tokens_per_minute=6000))
    headers = client.messages.with_raw_response.create(model="tiny-chat", max_tokens=4, messages=HI).headers
    assert headers["anthropic-ratelimit-requests-limit"] == "60"
    assert headers["anthropic-ratelimit-requests-remaining"] == "59"
    assert headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
    assert not any(name.startswith("x-ratelimit") for name in headers)


def test_a_stream_that_breaks_ends_with_an_error_event(claude, stack, tenant):
    stack.witness.faults(cut_after=3)
    with (
        pytest.raises(anthropic.APIStatusError) as broken,
        claude.messages.stream(model="tiny-chat", max_tokens=64, messages=HI) as stream,
    ):
        for _ in stream:
            pass
    assert broken.value.body["error"]["type"] == "api_error"
    assert wait_until(tenant.events)[0].output_tokens == 3


def test_either_key_header_is_accepted_and_two_different_keys_are_refused(stack, claude, tenant):
    body = {"model": "tiny-chat", "max_tokens": 2, "messages": HI}
    url = f"{stack.gateway.url}/v1/messages"
    bearer = {"authorization": f"Bearer {tenant.key}"}
    assert httpx.post(url, json=body, headers=bearer).status_code == 200
    for beside in (tenant.key, ""):
        assert httpx.post(url, json=body, headers={**bearer, "x-api-key": beside}).status_code == 200
    for beside in ("", "Bearer"):
        given = {"authorization": beside, "x-api-key": tenant.key}
        assert httpx.post(url, json=body, headers=given).status_code == 200
    assert httpx.post(url, json=body, headers={**bearer, "x-api-key": stack.tenant().key}).status_code == 401
    nothing = httpx.get(f"{url}/batches", headers=bearer)
    assert (nothing.status_code, nothing.json()["error"]["type"]) == (404, "not_found_error")
