"""Providers' answers become what an engine would have sent. The transcripts are written after the references of OpenAI
and Anthropic, and read through the gateway's own rewriter.
"""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from data_plane.gateway.api import openai_response
from data_plane.gateway.api.anthropic_request import parse_messages
from data_plane.gateway.api.openai_request import BodyLimits, parse_call
from data_plane.gateway.api.sse import DONE, Rewriter, StreamBroken
from data_plane.gateway.providers.formats import format_of, provider_body
from data_plane.gateway.providers.meter import ProviderMeter
from data_plane.gateway.providers.whole_answer import WholeAnswer
from tests.fixtures.providers.routes import provider_route

LIMITS = BodyLimits(json_depth_max=64, messages_max=100)
CHUNK = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1, "model": "gpt", "service_tier": "default"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}


def openai_stream(*deltas: dict, usage: dict | None, reason: str = "stop", done: bool = True) -> bytes:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason})
    chunks = [CHUNK | {"choices": [choice], "usage": None, "obfuscation": "aB"} for choice in choices]
    chunks += [CHUNK | {"choices": [], "usage": usage}] if usage else []
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + (
        b"data: [DONE]\n\n" if done else b""
    )


def anthropic_stream(*blocks: tuple[dict, list[dict]], reason: str = "end_turn", usage: dict | None) -> bytes:
    begun = {"input_tokens": 9, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}
    events = [{"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": begun}}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events += [{"type": "ping"}, {"type": "content_block_stop", "index": index}]
    ended = {"stop_reason": reason, "stop_sequence": "END" if reason == "stop_sequence" else None}
    events += [{"type": "message_delta", "delta": ended, "usage": usage or {}}, {"type": "message_stop"}]
    return b"".join(f"event: {each['type']}\r\ndata: {json.dumps(each)}\r\n\r\n".encode() for each in events)


HELLO_ANTHROPIC = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in ("Hel", "lo")])
HELLO = {
    "openai": openai_stream(
        {"role": "assistant", "content": "", "refusal": None}, {"content": "Hel"}, {"content": "lo"},
        usage={"prompt_tokens": 16, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
    ),
    "anthropic": anthropic_stream(HELLO_ANTHROPIC, usage={"output_tokens": 5}),
}  # fmt: skip


def wire(kind: str, *, output_max: int = 100, **limits: int):
    meter = ProviderMeter(prompt_tokens=20, output_max=output_max)
    bounds = {"event_max_bytes": 10_000, "bytes_max": 100_000} | limits
    return meter, format_of(provider_route(kind=kind))(meter, response_id="chatcmpl-1", engine_name="mini", **bounds)


def through(kind: str, stream: bytes, *, cuts: tuple[int, ...] = (), usage_shown="final"):
    """The caller's chunks of a stream that arrives in pieces, and the meter."""
    meter, translated = wire(kind)
    rewriter = Rewriter(
        response_id="chatcmpl-1", engine_name="mini", shown_name="my-mini", usage_shown=usage_shown, sequences=1,
        event_max_bytes=10_000,
    )  # fmt: skip
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    out = [translated.feed(stream[one:two]) for one, two in itertools.pairwise(places)]
    events = b"".join(rewriter.feed(part) for part in [*out, translated.end()] if part).split(b"\n\n")
    assert rewriter.done
    return [json.loads(event[6:]) for event in events if event], meter


def text_of(chunks: list[dict]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@given(kind=st.sampled_from(["openai", "anthropic"]), cuts=st.lists(st.integers(0, 5000), max_size=6))
def test_a_stream_is_the_same_however_its_bytes_arrive(kind, cuts):
    chunks, meter = through(kind, HELLO[kind], cuts=tuple(cuts))
    assert text_of(chunks) == "Hello"
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("chatcmpl-1", "my-mini")}
    assert "obfuscation" not in str(chunks)
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert [(chunks[-1]["usage"][name]) for name in ("prompt_tokens", "completion_tokens")] == [16, 5]
    assert meter.counts().sequences == [(16, 5)]


def test_running_usage_grows_with_the_text_before_the_provider_reports_any():
    chunks, _ = through("openai", HELLO["openai"], usage_shown="continuous")
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted[:4] == [0, 1, 2, 2]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_tool_call_arrives_in_pieces(kind):
    pieces = ['{"city"', ': "Rome"}']
    if kind == "openai":
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        more = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
        stream = openai_stream({"tool_calls": [first]}, *more, usage=None, reason="tool_calls")
    else:
        block = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
        stream = anthropic_stream((block, deltas), reason="tool_use", usage={"output_tokens": 9})
    chunks, meter = through(kind, stream)
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("call_1", "weather")
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Rome"}'
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "tool_calls"
    assert meter.counts().output_tokens > 0


def test_a_tool_without_input_has_an_empty_object_as_arguments():
    block = {"type": "tool_use", "id": "call_1", "name": "now", "input": {}}
    chunks, _ = through("anthropic", anthropic_stream((block, []), reason="tool_use", usage={"output_tokens": 3}))
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert calls[-1] == {"index": 0, "function": {"arguments": "{}"}}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_stream_without_usage_is_an_estimate_that_says_so(kind):
    stream = openai_stream({"content": "Hello"}, usage=None) if kind == "openai" else None
    _, meter = through(kind, stream or anthropic_stream(HELLO_ANTHROPIC, usage=None))
    counts = meter.counts()
    assert counts.counted_here
    assert counts.sequences == [(20, 2)]


def test_a_stream_that_only_says_why_it_ended_is_complete():
    chunks, _ = through("openai_compatible", openai_stream({"content": "Hello"}, usage=None, done=False))
    assert text_of(chunks) == "Hello"


BROKEN = {
    "cut": HELLO["openai"][:250],
    "error": b'data: {"error": {"message": "secret"}}\n\n',
    "no JSON": b"data: {\n\n",
    "no object": b"data: [1]\n\n",
    "no choices": b'data: {"choices": 7}\n\n',
    "no text": b'data: {"choices": [{"delta": {"content": 7}}]}\n\n',
    "empty": b"",
}


@pytest.mark.parametrize("stream", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_stream_raises_one_error(stream):
    _, translated = wire("openai")
    with pytest.raises(StreamBroken):
        translated.feed(stream) + translated.end()


def test_an_error_among_anthropics_events_breaks_the_stream_after_what_came_before():
    error = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "secret"}}\n\n'
    _, translated = wire("anthropic")
    with pytest.raises(StreamBroken) as broken:
        translated.feed(HELLO["anthropic"].partition(b"event: content_block_stop")[0] + error)
    assert b"Hel" in broken.value.before


@pytest.mark.parametrize(("bound", "bytes_max"), [("event_max_bytes", 50), ("bytes_max", 200)])
def test_a_stream_beyond_its_bounds_is_broken(bound, bytes_max):
    _, translated = wire("openai", **{bound: bytes_max})
    pieces = [HELLO["openai"][at : at + 10] for at in range(0, len(HELLO["openai"]), 10)]
    with pytest.raises(StreamBroken):
        b"".join(map(translated.feed, pieces))


def whole(kind: str, stream: bytes, *, bytes_max: int = 10_000) -> tuple[WholeAnswer, dict]:
    """A whole answer of a stream, and how its caller sees it."""
    answer = WholeAnswer(bytes_max=bytes_max)
    meter, translated = wire(kind)
    for at in range(0, len(stream), 100):
        answer.add(translated.feed(stream[at : at + 100]).removesuffix(DONE))
    decoded = openai_response.decode(answer.encoded())
    return answer, json.loads(
        openai_response.for_caller(decoded, meter.counts(), response_id="r", shown_name="my-mini")
    )


def test_a_whole_answer_of_openai():
    usage = {"prompt_tokens": 16, "completion_tokens": 5, "total_tokens": 21}
    deltas = {"role": "assistant", "content": "", "refusal": None}, {"content": "Hel"}, {"content": "lo"}
    _, shown = whole("openai", openai_stream(*deltas, usage=usage, reason="length"))
    assert shown["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert (shown["choices"][0]["finish_reason"], shown["model"]) == ("length", "my-mini")
    assert (shown["usage"]["prompt_tokens"], shown["usage"]["completion_tokens"]) == (16, 5)


def test_a_whole_answer_of_openai_with_tools_and_how_sure_the_model_was():
    calls = [
        {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "weather", "arguments": "{"}}
        for at in (0, 1)
    ]
    more = [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for at, piece in ((0, "}"), (1, "}"))]
    token = {"token": "Hi", "logprob": -0.5}
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [token]}, "finish_reason": None}
    sure = b"data: " + json.dumps(CHUNK | {"choices": [choice]}).encode() + b"\n\n"
    _, shown = whole("openai", sure + openai_stream({"tool_calls": calls}, *more, usage=None, reason="tool_calls"))
    assert shown["choices"][0]["logprobs"] == {"content": [token]}
    assert [(call["id"], call["function"]) for call in shown["choices"][0]["message"]["tool_calls"]] == [
        (f"call_{at}", {"name": "weather", "arguments": "{}"}) for at in (0, 1)
    ]


def test_a_whole_answer_of_anthropic():
    blocks = [
        ({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "Rome?"}]),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Let me look."}]),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
            [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"city": ', '"Rome"}')],
        ),
    ]
    _, shown = whole("anthropic", anthropic_stream(*blocks, reason="tool_use", usage={"output_tokens": 30}))
    message = shown["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Let me look.", "Rome?")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
    usage = shown["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (
        16, 30, 4,
    )  # fmt: skip


def test_nothing_is_kept_of_a_whole_answer_that_is_too_large():
    answer, shown = whole("openai", openai_stream({"content": "Hel"}, {"content": "lo"}, usage=None), bytes_max=4)
    assert (answer.too_large, shown["choices"][0]["message"]["content"]) == (True, None)


@pytest.mark.parametrize("content", [["x"], "x", [{"logprob": "high"}], [{"logprob": 1e308}], 7, None])
def test_log_probabilities_of_another_form_are_left_out(content):
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": content}, "finish_reason": "stop"}
    _, translated = wire("openai")
    event = translated.feed(b"data: " + json.dumps(CHUNK | {"choices": [choice]}).encode() + b"\n\n")
    assert json.loads(event[6:])["choices"][0]["logprobs"] == {"content": None}


def body_of(kind: str, **fields: object) -> dict:
    given = {"model": "mini", "messages": [{"role": "user", "content": "hi"}], **fields}
    call = parse_call("chat", json.dumps(given).encode(), LIMITS)
    provider = provider_route(kind=kind)
    format_of(provider).require_taken(call)
    return json.loads(provider_body(call, provider, max_tokens=7))


def test_bodies_name_the_providers_model_and_the_granted_ceiling():
    assert body_of("openai", stream=True, temperature=0.5, logprobs=False) == {
        "model": "mini", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7,
        "temperature": 0.5, "logprobs": False, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert body_of("openai_compatible", top_k=4)["max_tokens"] == 7
    assert body_of("openai_compatible")["stream"] is True
    assert body_of("anthropic", stop="END", logprobs=False) == {
        "model": "mini", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "stop_sequences": ["END"],
        "stream": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("openai", "top_k", 4),
        ("openai", "logit_bias", {"1": 5}),
        ("openai", "n", 2),
        ("openai_compatible", "logit_bias", {"1": 5}),
        ("anthropic", "seed", 7),
        ("anthropic", "logprobs", True),
        ("anthropic", "temperature", 1.5),
        ("anthropic", "response_format", {"type": "json_object"}),
    ],
)
def test_a_field_that_a_provider_does_not_take_is_refused_by_name(kind, field, value):
    with pytest.raises(InvalidRequest) as refused:
        body_of(kind, **{field: value})
    assert refused.value.param == field


def test_a_conversation_with_tools_in_anthropics_form():
    calls = [
        {"id": f"call_{city}", "type": "function", "function": {"name": "weather", "arguments": f'{{"city":"{city}"}}'}}
        for city in ("rome", "bari")
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_rome", "content": "20"},
        {"role": "tool", "tool_call_id": "call_bari", "content": "25"},
    ]
    body = body_of("anthropic", messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert body["system"] == "Be brief."
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["input"] for block in body["messages"][1]["content"]] == [{"city": "rome"}, {"city": "bari"}]
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["call_rome", "call_bari"]
    assert body["tools"] == [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}


def test_a_request_of_anthropics_api_reaches_a_provider_of_either_kind():
    raw = msgspec.json.encode(
        {"model": "mini", "max_tokens": 5, "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    )
    for kind in ("openai", "anthropic"):
        call = parse_messages("chat", raw, LIMITS)
        provider = provider_route(kind=kind)
        format_of(provider).require_taken(call)
        assert "Be brief." in provider_body(call, provider, max_tokens=5).decode()


def test_completions_are_refused_by_name_of_the_model():
    call = parse_call("completion", b'{"model": "mini", "prompt": "hi"}', LIMITS)
    with pytest.raises(InvalidRequest) as refused:
        format_of(provider_route()).require_taken(call)
    assert (refused.value.code, refused.value.param) == ("model_takes_chats_only", "model")
