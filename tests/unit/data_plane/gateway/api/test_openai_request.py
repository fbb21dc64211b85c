"""The allow-list: which fields are refused and how errors name them, and which fields of an accepted body reach an
engine.
"""

import json
import time

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api.openai_request import BodyLimits, check_vocabulary, engine_body, parse_call
from tests.corpus.requests.bodies import BAD_BODIES, CHAT, COMPLETION

LIMITS = BodyLimits(json_depth_max=24, messages_max=256)


def parse(body: dict, kind="chat"):
    return parse_call(kind, json.dumps(body).encode(), LIMITS)


def for_engine(body: dict, kind="chat") -> dict:
    return json.loads(engine_body(parse(body, kind), model="ad_1@f00", max_tokens=7, cache_salt="salt"))


@pytest.mark.parametrize("bad", BAD_BODIES, ids=lambda bad: bad.name)
def test_a_bad_body_is_refused_by_name(bad, promised_s):
    began = time.perf_counter()
    with pytest.raises(InvalidRequest) as refusal:
        parse_call(bad.kind, bad.body, LIMITS)
    assert (refusal.value.code, refusal.value.param) == (bad.code, bad.param)
    assert refusal.value.message
    assert time.perf_counter() - began < promised_s(1)


def test_only_fields_decided_by_the_gateway_reach_the_engine():
    sent = for_engine({**CHAT, "user": "me", "metadata": {"a": "b"}, "temperature": 0, "max_tokens": 5, "stream": True})
    assert sent == {
        "model": "ad_1@f00",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "cache_salt": "salt",
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_completion_is_rebuilt_the_same_way():
    assert for_engine({**COMPLETION, "stop": "\n", "logprobs": 2}, "completion") == {
        "model": "ad_1@f00",
        "prompt": "hi",
        "max_tokens": 7,
        "cache_salt": "salt",
        "stop": ["\n"],
        "logprobs": 2,
    }


def test_null_equals_absent_even_for_refused_fields():
    assert for_engine(
        {**CHAT, "temperature": None, "cache_salt": None, "stream_options": None, "n": None}
    ) == for_engine(CHAT)


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    assert for_engine({**CHAT, "messages": [{"role": "user", "content": parts}]})["messages"][0]["content"] == "a\nb"


def test_the_smaller_of_two_token_limits_counts():
    assert parse({**CHAT, "max_tokens": 9, "max_completion_tokens": 5}).max_tokens == 5
    assert parse({**CHAT, "max_completion_tokens": 5, "max_tokens": 9}).max_tokens == 5


def test_tools_with_bounded_schemas_pass_through():
    parameters = {
        "type": "object",
        "properties": {"type": {"type": "string"}, "pattern": {"$ref": "#/$defs/p"}},
        "$defs": {"p": {"type": "string", "pattern": "^a+$"}},
    }
    tools = [{"type": "function", "function": {"name": "look_up", "description": "…", "parameters": parameters}}]
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    sent = for_engine({**CHAT, "messages": messages, "tools": tools})
    assert (sent["tools"], sent["tool_choice"]) == (tools, "auto")
    assert sent["messages"][1]["tool_calls"] == [call]


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_tool_calls_reaches_the_engine_as_requested(parallel):
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    asked = {**CHAT, "tools": tools, "tool_choice": "required"}
    sent = for_engine({**asked, "parallel_tool_calls": parallel})
    assert sent["parallel_tool_calls"] is parallel
    assert sent == {**for_engine(asked), "parallel_tool_calls": parallel}
    assert for_engine({**CHAT, "parallel_tool_calls": parallel})["parallel_tool_calls"] is parallel


def test_an_absent_parallel_tool_calls_leaves_the_engines_default():
    assert "parallel_tool_calls" not in for_engine(CHAT)
    assert for_engine({**CHAT, "parallel_tool_calls": None}) == for_engine(CHAT)


@pytest.mark.parametrize("wrong", ["true", 1, 0, []])
def test_parallel_tool_calls_is_a_boolean_and_only_for_chats(wrong):
    with pytest.raises(InvalidRequest) as refusal:
        parse({**CHAT, "parallel_tool_calls": wrong})
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", "parallel_tool_calls")
    with pytest.raises(InvalidRequest) as refusal:
        parse({**COMPLETION, "parallel_tool_calls": True}, "completion")
    assert (refusal.value.code, refusal.value.param) == ("unknown_parameter", "parallel_tool_calls")


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}, {"enable_thinking": False}], ids=str)
def test_enable_thinking_reaches_the_engine_and_is_counted_by_tokenize(options):
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": options}
    assert for_engine(asked)["chat_template_kwargs"] == options
    assert parse(asked, "tokenize").fields["chat_template_kwargs"] == options


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(1, "invalid_value"), ({"enable_thinking": "no"}, "invalid_value"), ({"tools": []}, "unsupported_parameter")],
)
def test_no_other_template_argument_is_accepted(wrong, code):
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": wrong}
    with pytest.raises(InvalidRequest) as refused:
        parse(asked)
    assert refused.value.code == code


def test_an_answer_may_be_sent_back_as_sdks_store_it():
    held = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_calls": []}
    sent = for_engine({**CHAT, "messages": [*CHAT["messages"], held, *CHAT["messages"]]})
    assert sent["messages"][1] == {"role": "assistant", "content": "a"}
    for name, value in (("annotations", [1]), ("audio", {"id": "a"}), ("refusal", "no"), ("tool_calls", {})):
        with pytest.raises(InvalidRequest) as refusal:
            parse({**CHAT, "messages": [{**held, name: value}]})
        assert refusal.value.param == f"messages[0].{name}"


def test_requests_for_several_sequences_ask_for_token_ids_to_count_them():
    sent = for_engine({**CHAT, "n": 3})
    assert (sent["n"], sent["return_token_ids"]) == (3, True)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "none"),
        ({"include_usage": True}, "final"),
        ({"include_usage": True, "continuous_usage_stats": True}, "continuous"),
        ({"include_usage": False}, "none"),
    ],
)
def test_the_caller_sees_the_requested_usage(options, shown):
    assert parse({**CHAT, "stream": True, "stream_options": options}).usage_shown == shown


def test_a_bias_for_a_token_the_model_lacks_is_refused():
    call = parse({**CHAT, "logit_bias": {"007": 1}})
    assert call.fields["logit_bias"] == {"7": 1.0}
    check_vocabulary(call, 8)
    with pytest.raises(InvalidRequest, match="below 7"):
        check_vocabulary(call, 7)


def test_tokenize_takes_messages_or_a_prompt_and_nothing_else():
    assert parse({"model": "m", "prompt": "a"}, "tokenize").prompt == "a"
    assert parse(CHAT, "tokenize").messages
    for body in ({"model": "m"}, {**CHAT, "prompt": "a"}, {**CHAT, "temperature": 1}):
        with pytest.raises(InvalidRequest):
            parse(body, "tokenize")
