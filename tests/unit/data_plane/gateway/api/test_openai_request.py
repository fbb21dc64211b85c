"""The allow-list: which fields are refused and how errors name them, and which fields of an accepted body reach an
engine.
"""

import json
import time

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import NEUTRAL, REFUSED
from data_plane.gateway.api.openai_request import BodyLimits, check_vocabulary, engine_body, parse_call
from tests.corpus.requests.bodies import BAD_BODIES, CHAT, COMPLETION

LIMITS = BodyLimits(json_depth_max=48, messages_max=4096)


def parse(body: dict, kind="chat"):
    return parse_call(kind, json.dumps(body).encode(), LIMITS)


def for_engine(body: dict, kind="chat") -> dict:
    return json.loads(engine_body(parse(body, kind), model="ad_1@f00", max_tokens=7, cache_salt="salt"))


def test_a_bad_body_is_refused_by_name(promised_s):
    for bad in BAD_BODIES:
        began = time.perf_counter()
        with pytest.raises(InvalidRequest) as refusal:
            parse_call(bad.kind, bad.body, LIMITS)
        assert (refusal.value.code, refusal.value.param) == (bad.code, bad.param), bad.name
        assert refusal.value.message
        assert time.perf_counter() - began < promised_s(1), bad.name


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
    assert "parallel_tool_calls" not in for_engine(asked)


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}, {"enable_thinking": False}], ids=str)
def test_enable_thinking_reaches_the_engine_and_is_counted_by_tokenize(options):
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": options}
    assert for_engine(asked)["chat_template_kwargs"] == options
    assert parse(asked, "tokenize").fields["chat_template_kwargs"] == options


def test_an_answer_may_be_sent_back_as_sdks_store_it():
    held = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_calls": []}
    sent = for_engine({**CHAT, "messages": [*CHAT["messages"], held, *CHAT["messages"]]})
    assert sent["messages"][1] == {"role": "assistant", "content": "a"}
    with pytest.raises(InvalidRequest) as refusal:
        parse({**CHAT, "messages": [{**held, "tool_calls": {}}]})
    assert refusal.value.param == "messages[0].tool_calls"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID = {"role": "assistant", "content": "a"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        ({**SAID, "reasoning_content": None, "reasoning": None, "name": None}, SAID),
        ({**SAID, "reasoning_content": "Well", "reasoning_details": [{"text": "Well"}]}, SAID),
        ({**SAID, "thinking_blocks": [{"type": "thinking"}], "provider_specific_fields": {"a": 1}}, SAID),
        ({**SAID, "annotations": [{"type": "url_citation"}], "id": "msg_1", "status": "completed"}, SAID),
        ({**SAID, "parsed": {"a": 1}, "images": [], "prefix": False, "name": ""}, SAID),
        ({"role": "assistant", "content": None, "refusal": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": None, "refusal": "No."}, {"role": "assistant", "content": "No."}),
        ({**SAID, "refusal": "No."}, {"role": "assistant", "content": "a\nNo."}),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a", "annotations": [1]},
                                              {"type": "refusal", "refusal": "No.", "text": None}]},
            {"role": "assistant", "content": "a\nNo."},
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Well", "signature": "x"},
                                              {"type": "output_text", "text": "a", "logprobs": []}]},
            SAID,
        ),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
          "tool_calls": []}, {"role": "user", "content": "a"}),
        ({"role": "assistant", "tool_calls": [{**CALL, "index": 0, "extra_content": {"google": {}}}]}, CALLED),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": None, "provider_specific_fields": {"a": 1},
             "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}, "description": None}}]},
            CALLED,
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": None}}]},
            {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": ""}}]},
        ),
        ({"role": "tool", "tool_call_id": "c", "content": None, "name": "f" * 128},
         {"role": "tool", "tool_call_id": "c", "content": "", "name": "f" * 128}),
    ],
    ids=str,
)  # fmt: skip
def test_marks_in_the_history_are_passed_over_and_what_was_said_is_kept(returned, kept):
    assert for_engine({**CHAT, "messages": [returned, *CHAT["messages"]]})["messages"][0] == kept


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *[(kind, {name: value}) for name, values in NEUTRAL.items() for value in values if "." not in name
          for kind in ("chat", "completion")],
        *[("chat", {"stream": True, "stream_options": options}) for options in (
            {}, None, {"include_obfuscation": False}, {"include_usage": False}, {"include_usage": None})],
        ("chat", {"stream_options": {"include_usage": False}}),
        ("chat", {"min_tokens": 0.0}),
        ("chat", {"tools": []}),
        ("chat", {"tools": [], "tool_choice": "none"}),
        ("chat", {"tool_choice": "auto"}),
        ("chat", {"add_special_tokens": False}),
        ("completion", {"add_special_tokens": True}),
        ("chat", {"metadata": {}, "a field of another server": None, "audio": None}),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_whose_value_asks_for_nothing_has_no_effect(kind, fields):
    body = CHAT if kind == "chat" else COMPLETION
    stream = {"stream": True} if "stream" in fields else {}
    assert for_engine({**body, **fields}, kind) == for_engine({**body, **stream}, kind)


def test_the_neutral_values_are_those_of_refused_fields():
    assert NEUTRAL.keys() <= REFUSED.keys()


def test_values_that_ask_for_little_reach_the_engine_in_a_form_that_it_takes():
    sent = for_engine({**CHAT, "top_p": 0, "stop": ["a", None], "logit_bias": {"5": None}, "logprobs": False,
                       "top_logprobs": 0})  # fmt: skip
    assert (sent["top_p"], sent["stop"], sent["logit_bias"]) == (1e-6, ["a"], {})
    bare = {"type": "function", "function": {"name": "f"}}
    nulls = {"name": "f", "description": None, "parameters": None, "strict": None}
    tool = {"type": "function", "function": nulls, "cache_control": None}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": [None]}, "strict": None}}
    choice = {"type": "function", "function": {"name": "f", "description": None}}
    sent = for_engine({**CHAT, "tools": [tool], "tool_choice": choice})
    assert (sent["tools"], sent["tool_choice"]) == ([bare], {"type": "function", "function": {"name": "f"}})
    sent = for_engine({**CHAT, "response_format": form})
    assert sent["response_format"]["format"]["json_schema"] == {"enum": [None]}


def test_the_tools_of_coding_agents_fit():
    """A hundred tools of MCP servers, long names and descriptions of 20,000 characters, deep schemas, long enums."""
    schema: dict = {"type": "string", "enum": [str(number) for number in range(400)]}
    for _ in range(10):
        schema = {"type": "object", "properties": {"value": schema}}
    tools = [
        {"type": "function", "function": {"name": f"mcp__{'server' * 18}__{n}", "description": "a" * size,
                                          "parameters": schema if n < 9 else {"type": "object"}}}
        for n, size in [*((number, 20_000) for number in range(9)), *((number, 100) for number in range(9, 128))]
    ]  # fmt: skip
    assert for_engine({**CHAT, "tools": tools})["tools"] == tools


def test_references_that_lead_through_thousands_of_others_are_refused():
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    with pytest.raises(InvalidRequest) as refusal:
        parse({**CHAT, "response_format": form})
    assert refusal.value.code == "schema_too_complex"


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [("hi", "hi"), (["hi"], "hi"), (["hi", "ho", "hi"], ["hi", "ho", "hi"]), (["a"] * 32, ["a"] * 32)],
)
def test_a_completion_has_one_prompt_or_a_list_of_them(prompt, sent):
    assert for_engine({**COMPLETION, "prompt": prompt}, "completion")["prompt"] == sent


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
    assert parse({"model": "m", "prompt": "a"}, "tokenize").prompts == ["a"]
    assert parse(CHAT, "tokenize").messages
    for body in ({"model": "m"}, {**CHAT, "prompt": "a"}, {**CHAT, "temperature": 1}):
        with pytest.raises(InvalidRequest):
            parse(body, "tokenize")


UNIQUE = {"type": "array", "items": {}, "uniqueItems": True}
_ANSWER = "response_format.json_schema.schema.uniqueItems"


@pytest.mark.parametrize(
    ("strict", "answer_param", "tool_param"),
    [
        ({"strict": True}, _ANSWER, "tools[0].function.parameters.uniqueItems"),
        ({}, _ANSWER, None),
        ({"strict": False}, None, None),
    ],
)
def test_a_constraint_that_is_not_enforced_is_refused_where_the_caller_may_rely_on_it(strict, answer_param, tool_param):
    answer = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": UNIQUE, **strict}}}
    tool = {"tools": [{"type": "function", "function": {"name": "f", "parameters": UNIQUE, **strict}}]}
    for fields, param in ((answer, answer_param), (tool, tool_param)):
        if param is None:
            parse({**CHAT, **fields})
            continue
        with pytest.raises(InvalidRequest) as refused:
            parse({**CHAT, **fields})
        assert (refused.value.code, refused.value.param) == ("schema_invalid", param)
