"""The grammars that gateways compile first are exactly those that vLLM builds for the same call."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api.grammar import grammars_of
from data_plane.gateway.api.openai_request import BodyLimits, engine_body, parse_call
from data_plane.gateway.api.tool_schemas import json_form
from tests.fixtures.late_import import LateModule

protocol = LateModule("vllm.entrypoints.openai.chat_completion.protocol")
parsers = LateModule("vllm.parser.abstract_parser")
tool_parser = LateModule("data_plane.engine.tool_parser")
strict = LateModule("vllm.tool_parsers.tool_strict_level")

SCHEMAS = st.sampled_from(
    [
        None,
        {},
        {"type": "object", "properties": {"x": {"type": ["integer", "null"], "default": None, "enum": [1, None]}}},
        {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}, "required": ["b"]},
        {"type": "object", "properties": {"é": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"type": "number"}}},
    ]
)
FORMS = st.sampled_from(
    [
        None,
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "title": "T"}}},
    ]
)


ANY_OBJECT = {"type": "structural_tag", "format": json_form({"type": "object"})}


def engine_grammar(body: bytes) -> object:
    """The grammar that vLLM compiles for a body, by its own code."""
    request = protocol.ChatCompletionRequest.model_validate_json(body)
    parser = parsers.DelegatingParser.__new__(parsers.DelegatingParser)
    parser._reasoning_parser = None
    parser._tool_parser = tool_parser.HermesToolParser(object(), request.tools)
    parser.tool_strict_level = strict.ToolStrictLevel.PARAMETER
    params = parser.adjust_request(request).extract_structured_outputs()
    if params is None:
        return None
    return json.loads(params.structural_tag)


@given(
    schemas=st.lists(SCHEMAS, max_size=3),
    choice=st.sampled_from(["none", "auto", "required", 0, None]),
    form=FORMS,
    parallel=st.sampled_from([None, True, False]),
    is_strict=st.sampled_from([None, True, False]),
)
def test_the_last_grammar_of_a_call_is_what_vllm_compiles(schemas, choice, form, parallel, is_strict):
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if schemas:
        functions = [
            {"name": f"f{index}"}
            | ({} if schema is None else {"parameters": schema})
            | ({} if is_strict is None else {"strict": is_strict})
            for index, schema in enumerate(schemas)
        ]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
        if choice is not None:
            named = {"type": "function", "function": {"name": f"f{choice}"}}
            body["tool_choice"] = named if choice == 0 else choice
    if form is not None:
        body["response_format"] = form
    if parallel is not None:
        body["parallel_tool_calls"] = parallel
    call = parse_call("chat", json.dumps(body).encode(), BodyLimits(24, 256))
    built = engine_grammar(engine_body(call, model="m", max_tokens=5, cache_salt="s"))
    grammars = list(grammars_of(call))
    if built is None or built == ANY_OBJECT:  # one grammar for all callers
        assert grammars == []
    else:
        assert msgspec.json.decode(grammars[-1].source) == built


def test_the_grammar_is_compiled_from_the_text_that_is_compiled_in_the_gateway():
    """XGrammar keeps the order of properties, so the two sources must agree in it."""
    parameters = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
    }  # fmt: skip
    call = parse_call("chat", json.dumps(body).encode(), BodyLimits(24, 256))
    (grammar,) = grammars_of(call)
    built = engine_grammar(engine_body(call, model="m", max_tokens=5, cache_salt="s"))
    assert json.dumps(json.loads(grammar.source)) == json.dumps(built)


@pytest.mark.parametrize("change", ["a name", "an order", "a choice"])
def test_renamed_or_moved_tools_are_another_grammar(change):
    def source(*names: str, choice: object = "auto") -> bytes:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
        (grammar,) = grammars_of(parse_call("chat", json.dumps(body).encode(), BodyLimits(24, 256)))
        return grammar.source

    others = {
        "a name": lambda: source("a", "c"),
        "an order": lambda: source("b", "a"),
        "a choice": lambda: source("a", "b", choice="required"),
    }
    assert source("a", "b") != others[change]()


EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
LIST = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "before", "pairs", "after"),
    [
        ({"response_format": {"type": "json_object"}}, "", ["{", "}"], ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": EMPTY}}},
         "", ["{", "}"], ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": LIST}}},
         "", ["{", '"a"', ":", "[", "1", ",", "2", "]", "}"], ""),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": LIST}}], "tool_choice": "required"},
         '<tool_call>{"name": "f", "arguments": ', ["{", '"a"', ":", "[", "1", ",", "2", "]", "}"], "}</tool_call>"),
    ],
)  # fmt: skip
def test_white_space_between_tokens_of_json_is_allowed_and_has_an_end(fields, before, pairs, after):
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string

    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    call = parse_call("chat", json.dumps(body).encode(), BodyLimits(24, 256))
    grammar = Grammar.from_structural_tag(
        json.dumps(engine_grammar(engine_body(call, model="m", max_tokens=5, cache_salt="s")))
    )

    def is_allowed(spaces: str) -> bool:
        return _is_grammar_accept_string(grammar, before + spaces.join(pairs) + after)

    assert [is_allowed(spaces) for spaces in ("", " ", "\n      ", "\n" * 9)] == [True, True, True, False]
