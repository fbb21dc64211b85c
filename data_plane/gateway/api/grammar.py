"""The grammars that an engine compiles for a call, exactly as vLLM 0.32 builds them. Pure.

With tools, vLLM merges all of them, with their names, into one structural tag (format ``hermes`` in
``vllm/tool_parsers/structural_tag_registry.py``, and ``vllm/parser/abstract_parser.py``). A tool that is renamed or
moved therefore makes a new grammar. ``schema_compiler.py`` compiles the result first, so that nothing else is compiled
in an engine.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from data_plane.gateway.api.openai_request import Call

_BEGIN, _END = "<tool_call>", "</tool_call>"
_SPACING: Final = ((_BEGIN + '\n{"name": "', "}\n" + _END), (_BEGIN + '{"name": "', "}" + _END))


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """``source`` is JSON: a schema, or a structural tag. ``schemas`` are the schemas in it by the name of the parameter
    that holds each, to say which one does not compile.
    """

    kind: Literal["json_schema", "structural_tag"]
    source: bytes
    param: str
    schemas: tuple[tuple[str, bytes], ...] = ()


def grammars_of(call: Call) -> Iterator[Grammar]:
    """The grammars of a call, the whole call's last."""
    form = call.fields.get("response_format") or {}
    schema = form["json_schema"]["schema"] if form.get("type") == "json_schema" else None
    choice = call.fields.get("tool_choice", "auto")
    if schema is not None and (not call.tools or choice in ("none", "auto")):
        yield Grammar(kind="json_schema", source=msgspec.json.encode(schema), param=call.paths.answer_schema)
    if not call.tools or choice == "none":
        return
    indexed = [
        (call.paths.tool_schema.format(index), tool["function"])
        for index, tool in enumerate(call.tools)
        if isinstance(choice, str) or tool["function"]["name"] == choice["function"]["name"]
    ]
    output = schema if schema is not None else {"type": "object"} if form.get("type") == "json_object" else None
    single = call.fields.get("parallel_tool_calls") is False
    calls = _calls([function for _, function in indexed], choice, single=single, or_output=output is not None)
    if choice == "auto" and output is not None:
        calls = {"type": "or", "elements": [calls, _json(output)]}
    yield Grammar(
        kind="structural_tag",
        source=msgspec.json.encode({"type": "structural_tag", "format": calls}),
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
            "content": _json(True if (parameters := function.get("parameters")) is None else parameters),
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


def _json(schema: Any) -> dict[str, Any]:
    return {
        "type": "json_schema", "json_schema": schema, "style": "json", "any_order": False, "max_whitespace_cnt": None,
        "excludes": [],
    }  # fmt: skip
