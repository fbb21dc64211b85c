"""Anthropic's format: the translation of a conversation for the engine, and events that form the whole message."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from data_plane.gateway.api.anthropic_request import ACCEPTED, IGNORED, REFUSED, parse_messages
from data_plane.gateway.api.anthropic_response import Events, message
from data_plane.gateway.api.grammar import grammars_of
from data_plane.gateway.api.openai_request import BodyLimits, engine_body

LIMITS = BodyLimits(json_depth_max=24, messages_max=256)
HI = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def for_engine(**fields: object) -> dict:
    call = parse_messages("chat", json.dumps({**HI, **fields}).encode(), LIMITS)
    return json.loads(engine_body(call, model="e", max_tokens=9, cache_salt="s"))


def refusal(kind="chat", **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(kind, json.dumps({**HI, **fields}).encode(), LIMITS)
    return caught.value


def test_fields_without_effect_and_null_fields_do_not_change_the_request():
    null = dict.fromkeys(ACCEPTED.keys() - HI.keys() | REFUSED)
    ignored = {name: {"type": "ephemeral"} for name in IGNORED}
    assert for_engine(**{**null, **ignored, "thinking": {"type": "disabled"}}) == for_engine()


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
)
def test_every_tool_choice_is_translated(choice, sent):
    body = for_engine(tools=[TOOL], tool_choice=choice)
    assert {name: body[name] for name in sent} == sent


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages.0.content.0"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "description": 1}]}, "tools.0.description"),
        ({"tools": [TOOL, {**TOOL, "input_schema": {"type": "x"}}]}, "tools.1.input_schema"),
        ({"tools": [{**TOOL, "parameters": {}}]}, "tools.0.parameters"),
        ({"tool_choice": {"type": "tool", "name": 1}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "json_schema", "name": "a"}}}, "output_config.format.name"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1"),
        ({"output_config": {"format": {"type": "json_schema", "schema": []}}}, "output_config.format.schema"),
        ({"metadata": {"user": "a"}}, "metadata.user"),
        ({"n": 2}, "n"),
    ],
)
def test_an_invalid_field_is_named(fields, param):
    assert refusal(**fields).param == param


def test_a_schema_that_does_not_compile_is_named_by_anthropics_path():
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    body = {**HI, "tools": [TOOL, TOOL], "output_config": form}
    grammars = list(grammars_of(parse_messages("chat", json.dumps(body).encode(), LIMITS)))
    schemas = [path for path, _ in grammars[1].schemas]
    assert grammars[0].param == "output_config.format.schema"
    assert schemas == ["tools.0.input_schema", "tools.1.input_schema"]


def test_token_counting_accepts_no_field_that_shapes_an_answer():
    assert refusal("tokenize").param == "max_tokens"


def chunk(delta: dict, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    body = {"id": "chatcmpl-req_1", "model": "m", "choices": [choice], "usage": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@given(
    pieces=st.lists(texts, max_size=5),
    calls=st.lists(st.dictionaries(texts, st.integers() | texts, max_size=3), max_size=3),
    reason=st.sampled_from(["stop", "length", "tool_calls"]),
    stopped_by=st.none() | texts,
    cuts=st.sets(st.integers(0, 30)),
)
def test_the_events_of_a_stream_form_the_whole_message(pieces, calls, reason, stopped_by, cuts):
    arguments = [json.dumps(call) for call in calls]
    chunks = [chunk({"role": "assistant", "content": ""}), *[chunk({"content": piece}) for piece in pieces]]
    for index, text in enumerate(arguments):
        named = {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": text[:1]}}
        chunks += [
            chunk({"tool_calls": [named]}),
            chunk({"tool_calls": [{"index": index, "function": {"arguments": text[1:]}}]}),
        ]
    chunks.append(chunk({}, finish_reason=reason, stop_reason=stopped_by))
    groups = [b""]
    for index, each in enumerate([*chunks, b"data: [DONE]\n\n"]):
        groups = [*groups, each] if index in cuts else [*groups[:-1], groups[-1] + each]
    events = Events()
    wire = b"".join(events.feed(group) for group in groups)
    function_calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": text}} for n, text in enumerate(arguments)]
    whole = {
        "id": "chatcmpl-req_1", "model": "m",
        "choices": [{"message": {"content": "".join(pieces), "tool_calls": function_calls}, "finish_reason": reason,
                     "stop_reason": stopped_by}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }  # fmt: skip
    assert put_together(wire) == json.loads(message(json.dumps(whole).encode()))


def put_together(wire: bytes) -> dict:
    """The message that an SDK builds from the events, which must arrive in order."""
    found: dict = {}
    partial = ""
    for block in wire.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "message_start":
                assert not found
                found = event["message"]
            case "content_block_start":
                assert event["index"] == len(found["content"])
                found["content"].append(event["content_block"])
                partial = ""
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                found["content"][event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta":
                partial += event["delta"]["partial_json"]
            case "content_block_stop" if found["content"][event["index"]]["type"] == "tool_use":
                found["content"][event["index"]]["input"] = json.loads(partial)
            case "message_delta":
                found |= {**event["delta"], "usage": event["usage"]}
    assert wire.endswith(b'data: {"type":"message_stop"}\n\n')
    return found
