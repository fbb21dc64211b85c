"""The official SDKs against the whole platform with a real engine: streams, tools, schemas and log-probabilities, as a
model answers them and not as a witness does.
"""

import json

import anthropic
import openai
import pytest

from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
ANSWER_TOKENS = 300
"""A schema allows white space, and rounding decides how much of it comes: calls took 65 to 84 tokens."""


@pytest.fixture(scope="module")
def sdk(platform):
    _, key = platform.new_tenant("sdk")
    with openai.OpenAI(base_url=platform.status()["gateway_url"] + "/v1", api_key=key, max_retries=0) as client:
        yield client


def test_a_streams_usage_is_the_sum_of_its_chunks(sdk):
    chunks = list(
        sdk.chat.completions.create(
            model=BASE, messages=QUESTION, max_tokens=12, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    whole = sdk.chat.completions.create(model=BASE, messages=QUESTION, max_tokens=12, temperature=0)
    assert text
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens <= 12
    assert not any(chunk.usage for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("choice", "stream"), [("required", True), ({"type": "function", "function": {"name": "get_weather"}}, False)]
)
def test_a_forced_tool_is_called_with_arguments_of_its_schema(sdk, choice, stream):
    asked = {
        "model": BASE,
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": choice,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    if stream:
        parts = [
            call.function
            for chunk in sdk.chat.completions.create(**asked, stream=True)
            for each in chunk.choices
            for call in each.delta.tool_calls or ()
        ]
        name, arguments = ("".join(getattr(part, side) or "" for part in parts) for side in ("name", "arguments"))
    else:
        (call,) = sdk.chat.completions.create(**asked).choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert name == "get_weather"
    assert set(json.loads(arguments)) == {"city", "unit"}


def test_logprobs_and_several_choices_are_returned_as_requested(sdk):
    answer = sdk.chat.completions.create(
        model=BASE, messages=QUESTION, max_tokens=4, n=2, logprobs=True, top_logprobs=3, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(each.top_logprobs) == 3 for choice in answer.choices for each in choice.logprobs.content)


SMILE = "a 😀👍é!"
FORCED = [{"role": "user", "content": "Say it."}]


@pytest.mark.parametrize("stream", [False, True])
def test_the_bytes_of_a_chats_tokens_are_those_of_its_text(sdk, stream):
    schema = {"name": "smile", "schema": {"enum": [SMILE]}}
    answer = sdk.chat.completions.create(
        model=BASE, messages=FORCED, max_tokens=30, temperature=0, logprobs=True, top_logprobs=3, stream=stream,
        response_format={"type": "json_schema", "json_schema": schema},
    )  # fmt: skip
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    tokens = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    text = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
    assert json.loads(text) == SMILE
    assert bytes(byte for each in tokens for byte in each.bytes).decode() == text
    assert any(each.token.startswith("\\x") for each in tokens)


def test_a_completion_keeps_the_sampled_parts_of_characters(sdk):
    """A bias allows the three tokens of an emoji only."""
    asked = {
        "model": BASE, "prompt": "Smile:", "max_tokens": 9, "temperature": 0, "logprobs": 3,
        "logit_bias": {"10813": 100, "242": 100, "218": 100},
    }  # fmt: skip
    whole = sdk.completions.create(**asked).choices
    streamed = [choice for chunk in sdk.completions.create(**asked, stream=True) for choice in chunk.choices]
    found = []
    for choices in (whole, streamed):
        listed = [choice.logprobs for choice in choices if choice.logprobs]
        tokens, likeliest = (
            [each for one in listed for each in one.tokens],
            [each for one in listed for each in one.top_logprobs],
        )
        assert all(token in top for token, top in zip(tokens, likeliest, strict=True))
        found.append((tokens, [each for one in listed for each in one.text_offset]))
    assert found[0] == found[1]
    assert len(found[0][0]) == 9
    assert all(token.startswith("bytes:") for token in found[0][0])


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_of_a_list_is_completed_and_counted_with_its_cached_tokens(sdk, stream):
    prompts = ["The city of", "Hi", "Count with me. " + " ".join(map(str, range(100)))]
    shown = {"stream_options": {"include_usage": True}} if stream else {}
    asked = {"model": BASE, "max_tokens": 4, "temperature": 0}
    alone = [sdk.completions.create(prompt=prompt, **asked) for prompt in prompts]
    answer = sdk.completions.create(prompt=prompts, stream=stream, **shown, **asked)
    chunks = list(answer) if stream else [answer]
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1, 2}
    usage = chunks[-1].usage
    assert usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    assert usage.prompt_tokens_details.cached_tokens > 64


def test_an_answer_that_the_caller_began_is_continued_and_its_prompt_counted_before_as_by_the_engine(platform, sdk):
    turns = [*QUESTION, {"role": "assistant", "content": "Sunny, and the temperature is"}]
    with anthropic.Anthropic(base_url=platform.status()["gateway_url"], api_key=sdk.api_key, max_retries=0) as client:
        counted = client.messages.count_tokens(model=BASE, messages=turns).input_tokens
        with client.messages.stream(model=BASE, messages=turns, max_tokens=8) as stream:
            begun = next(event for event in stream if event.type == "message_start").message.usage
            final = stream.get_final_message()
    assert final.content[0].text
    assert begun.input_tokens + begun.cache_read_input_tokens == counted
    assert (begun.input_tokens, begun.cache_read_input_tokens) == (
        final.usage.input_tokens, final.usage.cache_read_input_tokens,
    )  # fmt: skip
