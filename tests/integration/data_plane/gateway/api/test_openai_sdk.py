"""OpenAI's API with its own SDK: tools, schemas, fields without effect, models, retries and the format of errors."""

import httpx
import openai
import pydantic
import pytest

from core.contracts.grants import KeyLimits
from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
CITY = '{"city": "amber"}'


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.mark.parametrize(
    ("content", "choice", "stream"),
    [
        ("get_weather please", None, False),
        ("hi", "required", True),
        ("hi", {"type": "function", "function": {"name": "get_weather"}}, True),
    ],
)
def test_the_chosen_tool_is_called(tenant, stack, content, choice, stream):
    options = {} if choice is None else {"tool_choice": choice}
    answer = chat(tenant.sdk(), content, tools=TOOLS, stream=stream, **options)
    if stream:
        chunks = list(answer)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert calls[0].function.name == "get_weather"
        assert "".join(call.function.arguments for call in calls) == CITY
        reason = chunks[-1].choices[0].finish_reason
    else:
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", CITY)
        reason = answer.choices[0].finish_reason
    assert reason == "tool_calls"
    assert stack.witness.received()[-1]["body"]["tool_choice"] == (choice or "auto")


def test_tool_choice_none_calls_no_tool(tenant):
    answer = chat(tenant.sdk(), "get_weather please", tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_a_conversation_continues_with_the_sdks_own_message_objects(tenant):
    client = tenant.sdk()
    asked = {"role": "user", "content": "get_weather please"}
    message = chat(client, "get_weather please", tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    for held in (message, message.model_dump()):
        answer = client.chat.completions.create(model="tiny-chat", messages=[asked, held, result], tools=TOOLS)
        assert answer.choices[0].finish_reason == "stop"


def test_a_pydantic_model_is_parsed_from_the_answer(tenant):
    reply = tenant.sdk().chat.completions.parse(
        model="tiny-chat", messages=[{"role": "user", "content": "Who is it?"}], response_format=Person
    )
    assert reply.choices[0].message.parsed == Person(name="amber", age=7)


@pytest.mark.parametrize("stream", [False, True])
def test_fields_without_effect_change_nothing(tenant, stack, stream):
    ignored = {
        "store": True, "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low",
        "reasoning_effort": "low", "service_tier": "flex", "user": "me", "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "amber"},
    }  # fmt: skip
    client = tenant.sdk()
    plain, decorated = chat(client, stream=stream), chat(client, stream=stream, **ignored)
    if stream:
        chunks = list(decorated)
        assert {chunk.service_tier for chunk in list(plain)} == {None}
        assert {chunk.service_tier for chunk in chunks} == {"default"}
    else:
        assert (plain.service_tier, decorated.service_tier) == (None, "default")
        assert decorated.choices == plain.choices
    sent = [one["body"] for one in stack.witness.received()[-2:]]
    assert sent[0] == sent[1]


def test_logprobs_are_passed_on(tenant):
    choice = list(chat(tenant.sdk(), stream=True, logprobs=True, top_logprobs=2))[1].choices[0]
    assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_models_list_their_limits(stack):
    tenant = stack.tenant(context_tokens=1000, output_tokens=77)
    route = stack.publisher.adapter(tenant.id, "bot", revisions=2)
    old, new = route.revisions
    stack.publisher.alias(route, "canary", {old: 1, new: 3})
    client = tenant.sdk()
    wait_until(lambda: len(client.models.list().data) == 3)
    listed = {model.id: model.model_dump() for model in client.models.list()}
    assert listed["bot"]["revisions"] == {new: 1}
    assert listed["bot:canary"]["revisions"] == {old: 1, new: 3}
    assert listed["tiny-chat"]["revisions"] == {}
    for model in listed.values():
        assert model["capabilities"] == {"tools": True, "embeddings": False}
        assert model["max_model_len"] == model["limits"]["context_tokens"] == 1000
        assert model["limits"]["output_tokens"] == 77
        assert client.models.retrieve(model["id"]).model_dump() == model
    assert client.models.retrieve(f"bot@{old}").model_dump()["revisions"] == {old: 1}


def test_a_key_with_lower_limits_is_shown_and_held_to_them(stack, tenant):
    narrow = stack.publisher.key(tenant.id, limits=KeyLimits(context_tokens=100, output_tokens=5))
    client = tenant.sdk().with_options(api_key=narrow)
    wait_until(lambda: seen(client))
    shown = client.models.retrieve("tiny-chat").model_dump()
    assert (shown["limits"]["context_tokens"], shown["limits"]["output_tokens"]) == (100, 5)
    for refused in ({"max_tokens": 6}, {"content": "word " * 200}):
        with pytest.raises(openai.BadRequestError):
            chat(client, **refused)
    assert chat(client).usage.completion_tokens <= 5
    assert len(tenant.events()) == 1


def seen(client: openai.OpenAI) -> bool:
    """Whether the gateway knows the key."""
    try:
        return bool(client.models.list().data)
    except openai.AuthenticationError:
        return False


def test_the_sdk_retries_by_itself_and_is_charged_once(stack, tenant):
    tenant.sdk()
    stack.witness.faults(status=500, times=1)
    with openai.OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=tenant.key, max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="tiny-chat", messages=[{"role": "user", "content": "hi"}]
        )
    assert raw.retries_taken == 1
    assert tenant.event().outcome == "done"


def test_the_sdk_does_not_retry_a_request_that_cannot_succeed(stack, tenant):
    spent = stack.tenant(tokens_per_month=10)
    spent.sdk()
    requests: list[httpx.Request] = []
    http = httpx.Client(event_hooks={"request": [requests.append]})
    with openai.OpenAI(
        base_url=f"{stack.gateway.url}/v1", api_key=spent.key, max_retries=3, http_client=http
    ) as client:
        with pytest.raises(openai.RateLimitError) as refusal:
            chat(client)
        assert refusal.value.code == "insufficient_quota"
        assert refusal.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.NotFoundError) as missing:
            chat(client, model="no-such-bot")
        assert missing.value.response.headers["x-should-retry"] == "false"
    assert len(requests) == 2
