"""Anthropic's conversation as chat messages: marks without effect, what is refused, and an answer that is continued."""

import json

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api.anthropic_messages import chat_messages
from data_plane.gateway.api.anthropic_request import parse_messages
from data_plane.gateway.api.openai_request import BodyLimits, Call

HI = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def history(*turns: dict) -> list[dict]:
    """What an engine sees of these turns between two of the user."""
    return chat_messages(None, [HI, *turns, {"role": "user", "content": "go on"}], messages_max=9)


TEXT = {"type": "text", "text": "Hello."}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ({**TEXT, "citations": None, "cache_control": None, "parsed_output": None, "index": None}, [TEXT]),
        ({"type": "thinking", "thinking": "Hm.", "signature": "Ev=="}, []),
        ({"type": "redacted_thinking", "data": "Em=="}, []),
        ({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, []),
        ({"type": "text", "text": ""}, []),
        ({**USE, "caller": {"type": "direct"}, "toolset_name": None, "cache_control": {"type": "ephemeral"}}, [USE]),
    ],
)
def test_marks_in_an_earlier_answer_do_not_change_the_prompt(marked, plain):
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": 1}, "container": None, "content": [TEXT, marked],
    }  # fmt: skip
    assert history(answer) == history({"role": "assistant", "content": [TEXT, *plain]})


def test_calls_and_results_are_the_messages_of_a_chat():
    answered = {"role": "user", "content": [{**RESULT, "content": [TEXT]}, {"type": "text", "text": "and now?"}]}
    turns = [HI, {"role": "assistant", "content": [TEXT, USE]}, answered]
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert chat_messages([TEXT], turns, messages_max=9) == [
        {"role": "system", "content": "Hello."},
        HI,
        {"role": "assistant", "content": "Hello.", "tool_calls": [call]},
        {"role": "tool", "content": "Hello.", "tool_call_id": "t1"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_a_tool_result_may_be_empty(content):
    turns = ({"role": "assistant", "content": [USE]}, {"role": "user", "content": [{**RESULT, "content": content}]})
    assert history(*turns)[-2] == {"role": "tool", "content": "", "tool_call_id": "t1"}


def test_an_answer_without_text_and_a_system_message_stay_in_their_place():
    turns = ({"role": "assistant", "content": []}, {"role": "system", "content": [{**TEXT, "cache_control": None}]})
    assert history(*turns)[1:3] == [{"role": "assistant", "content": ""}, {"role": "system", "content": "Hello."}]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([{"type": "image", "source": {"type": "url", "url": "http://a"}}], "messages.1.content.0"),
        ([{"type": "tool_reference", "tool_name": "f"}], "messages.1.content.0"),
        ([{**RESULT, "content": [{"type": "image"}]}], "messages.1.content.0.content.0"),
        ([{**RESULT, "content": 7}], "messages.1.content.0.content"),
        ([TEXT, RESULT], "messages.1.content.1"),
        ([{**TEXT, "weight": 2}], "messages.1.content.0.weight"),
        ([{"type": "thinking", "thinking": "Hm."}], "messages.1.content.0"),
        (None, "messages.1.content"),
    ],
)
def test_content_that_would_change_the_prompt_is_refused_by_its_place(content, param):
    with pytest.raises(InvalidRequest) as caught:
        chat_messages(None, [HI, {"role": "user", "content": content}], messages_max=9)
    assert caught.value.param == param


def parsed(kind: str, content: object, **fields: object) -> Call:
    body = {"model": "m", "messages": [HI, {"role": "assistant", "content": content}], **fields}
    return parse_messages(kind, json.dumps(body).encode(), BodyLimits(json_depth_max=24, messages_max=9))


@pytest.mark.parametrize("kind", ["chat", "tokenize"])
@pytest.mark.parametrize("content", ["The answer is (", [{"type": "thinking", "thinking": "a"}, TEXT]])
def test_a_last_message_of_the_assistant_is_continued_and_counted_so(kind, content):
    call = parsed(kind, content, **({"max_tokens": 9} if kind == "chat" else {}))
    assert call.messages[-1]["role"] == "assistant"
    assert call.fields == {"add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_last_message_of_the_assistant_is_nothing_to_continue(content):
    call = parsed("chat", content, max_tokens=9)
    assert (call.messages, call.fields) == ([HI], {})


@pytest.mark.parametrize(
    ("content", "fields", "param"),
    [
        ("The answer is ", {}, "messages.1.content"),
        ([{"type": "text", "text": "So:\n"}], {}, "messages.1.content"),
        ([TEXT, USE], {}, "messages.1.content"),
        ("Hello", {"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("{", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ("{", {"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ],
)
def test_what_cannot_be_continued_is_refused(content, fields, param):
    with pytest.raises(InvalidRequest) as caught:
        parsed("chat", content, max_tokens=9, **fields)
    assert caught.value.param == param
