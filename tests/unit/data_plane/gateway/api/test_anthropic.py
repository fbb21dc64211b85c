"""The body of Anthropic's requests: what the engine gets of it, and what is refused by name."""

import json

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api.anthropic_request import ACCEPTED, IGNORED, REFUSED, parse_messages
from data_plane.gateway.api.grammar import grammars_of
from data_plane.gateway.api.openai_request import BodyLimits, engine_body

LIMITS = BodyLimits(json_depth_max=24, messages_max=256)
HI = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def for_engine(**fields: object) -> dict:
    call = parse_messages("chat", json.dumps({**HI, **fields}).encode(), LIMITS)
    return json.loads(engine_body(call, model="e", max_tokens=9, cache_salt="s"))


def refusal(kind="chat", **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(kind, json.dumps({**HI, **fields}).encode(), LIMITS)
    return caught.value


def test_fields_without_effect_and_null_fields_do_not_change_the_request():
    null = dict.fromkeys(ACCEPTED.keys() - HI.keys() | REFUSED.keys())
    ignored = {name: {"type": "ephemeral"} for name in IGNORED}
    assert for_engine(**{**null, **ignored, "thinking": {"type": "disabled"}}) == for_engine()


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"thinking": {"type": "disabled", "display": None}},
        {"context_management": {"edits": []}},
        {"context_management": {"edits": None}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"tools": [], "tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": None}},
        {"mcp_servers": [], "container": {"id": None, "skills": []}, "diagnostics": {"previous_message_id": None}},
        {"inference_geo": "global", "speed": "standard", "fallbacks": "default"},
        {"fallbacks": [], "user_profile_id": "", "thread": {}, "compaction": None, "billing_policy": {}},
        {"metadata": {}, "output_config": {}, "service_tier": "auto"},
        {"metadata": {"user_id": None}, "output_config": {"effort": "max", "format": None, "task_budget": None}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "service_tier": "standard_only"},
        {"system": ""},
        {"system": []},
        {"system": [{"type": "text", "text": "", "cache_control": None}]},
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=9f3a;"}]},
    ],
)
def test_a_value_that_asks_for_nothing_does_not_change_the_request(fields):
    assert for_engine(**fields) == for_engine()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"thinking": "adaptive"}, "thinking"),
        ({"thinking": {"type": "adaptive", "budget": 1}}, "thinking.budget"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits.0"),
        ({"context_management": {"edits": {}}}, "context_management.edits"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": {"id": None, "skills": ["pdf"]}}, "container"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
    ],
)
def test_a_value_that_asks_for_something_unsupported_is_refused_by_name(fields, param):
    assert refusal(**fields).param == param


def test_marks_of_tools_do_not_change_them():
    marks = {"type": "custom", "cache_control": None, "defer_loading": False, "allowed_callers": ["direct"]}
    more = {"input_examples": [], "eager_input_streaming": True, "description": None, "strict": None}
    assert for_engine(tools=[{**TOOL, **marks, **more}]) == for_engine(tools=[TOOL])


def test_the_earlier_name_of_an_answers_format_means_the_same():
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert for_engine(output_format=form) == for_engine(output_config={"format": form})
    assert refusal(output_format={"type": "text"}).param == "output_format.type"


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
    form = {"format": {"type": "json_schema", "schema": {"type": "object", "title": "T"}}}
    body = {**HI, "tools": [TOOL, TOOL], "output_config": form}
    grammars = list(grammars_of(parse_messages("chat", json.dumps(body).encode(), LIMITS)))
    schemas = [path for path, _ in grammars[1].schemas]
    assert grammars[0].param == "output_config.format.schema"
    assert schemas == ["tools.0.input_schema", "tools.1.input_schema"]


def test_token_counting_accepts_no_field_that_shapes_an_answer():
    assert refusal("tokenize").param == "max_tokens"


UNIQUE = {"type": "object", "properties": {"a": {"anyOf": [{"type": "array", "items": {}, "uniqueItems": True}]}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": UNIQUE}}},
            "output_config.format.schema.properties.a.anyOf.0.uniqueItems",
        ),
        (
            {"tools": [{"name": "f", "input_schema": UNIQUE, "strict": True}]},
            "tools.0.input_schema.properties.a.anyOf.0.uniqueItems",
        ),
        ({"tools": [{"name": "f", "input_schema": UNIQUE}]}, None),
    ],
)
def test_a_constraint_that_is_not_enforced_is_named_by_anthropics_path(fields, param):
    raw = json.dumps({**HI, **fields}).encode()
    if param is None:
        parse_messages("chat", raw, LIMITS)
        return
    with pytest.raises(InvalidRequest) as refused:
        parse_messages("chat", raw, LIMITS)
    assert (refused.value.code, refused.value.param) == ("schema_invalid", param)
