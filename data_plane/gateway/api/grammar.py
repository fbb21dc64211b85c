"""The grammars that an engine compiles for a call, exactly as vLLM 0.32 builds them. Pure.

An answer in JSON is a structural tag of our own: with a ``json_schema``, vLLM allows white space without end, and
refuses schemas without naming the reason. With tools, vLLM merges all of them, with their names, into one
structural tag (format ``hermes`` in ``vllm/tool_parsers/structural_tag_registry.py``, and
``vllm/parser/abstract_parser.py``). A tool that is renamed or moved therefore makes a new grammar.
``schema_compiler.py`` compiles the result first, so that nothing else is compiled in an engine.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from data_plane.gateway.api.openai_request import Call, answer_form
from data_plane.gateway.api.tool_schemas import json_form

_BEGIN, _END = "<tool_call>", "</tool_call>"
_ANY_OBJECT: Final = json_form({"type": "object"})
_SPACING: Final = ((_BEGIN + '\n{"name": "', "}\n" + _END), (_BEGIN + '{"name": "', "}" + _END))


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """``source`` is a structural tag in JSON. ``schemas`` are the schemas in it by the name of the parameter that holds
    each, to say which one does not compile.
    """

    source: bytes
    param: str
    schemas: tuple[tuple[str, bytes], ...] = ()


def grammars_of(call: Call) -> Iterator[Grammar]:
    """The grammars of a call, the whole call's last."""
    output = answer_form(call)
    choice = call.fields.get("tool_choice", "auto")
    if output is not None and output != _ANY_OBJECT:  # engines have compiled that one
        schema = msgspec.json.encode(output["json_schema"])
        param = call.paths.answer_schema
        yield Grammar(source=_tag(output), param=param, schemas=((param, schema),))
    if not call.tools or choice == "none":
        return
    indexed = [
        (call.paths.tool_schema.format(index), tool["function"])
        for index, tool in enumerate(call.tools)
        if isinstance(choice, str) or tool["function"]["name"] == choice["function"]["name"]
    ]
    single = call.fields.get("parallel_tool_calls") is False
    calls = _calls([function for _, function in indexed], choice, single=single, or_output=output is not None)
    if choice == "auto" and output is not None:
        calls = {"type": "or", "elements": [calls, output]}
    yield Grammar(
        source=_tag(calls),
        param="tools",
        schemas=tuple(
            (param, msgspec.json.encode(function["parameters"]))
            for param, function in indexed
            if function.get("parameters") is not None
        ),
    )


def _calls(functions: list[dict[str, Any]], choice: Any, *, single: bool, or_output: bool) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": begin + function["name"] + '", "arguments": ',
            "content": json_form(True if (parameters := function.get("parameters")) is None else parameters),
            "end": end,
        }
        for function in functions
        for begin, end in _SPACING
    ]
    if choice == "auto" and not or_output:
        return {
            "type": "triggered_tags", "triggers": [_BEGIN], "tags": tags, "at_least_one": False,
            "stop_after_first": single, "excludes": [],
        }  # fmt: skip
    forced = not isinstance(choice, str)
    return {
        "type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True,
        "stop_after_first": single or forced,
    }  # fmt: skip


def _tag(form: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": "structural_tag", "format": form})
