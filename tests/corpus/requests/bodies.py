"""Bad bodies as data: raw bytes or changes to a good body, by the row of the threat table that they represent."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from data_plane.gateway.api.fields import REFUSED

CHAT = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "tiny-chat", "prompt": "hi"}


@dataclass(frozen=True)
class Bad:
    """One request that must be refused before anything reaches an engine."""

    name: str
    body: bytes
    code: str
    param: str | None = None
    kind: str = "chat"
    row: str = ""


def _row(row: str, *items: Bad | Iterable[Bad]) -> list[Bad]:
    flat = [each for item in items for each in ([item] if isinstance(item, Bad) else item)]
    return [replace(item, row=row, name=f"{row} {item.name}") for item in flat]


def _raw(name: str, body: bytes, param: str | None = None) -> Bad:
    return Bad(name, body, "invalid_json", param)


def _chat(name: str, code: str, param: str | None, **changes: object) -> Bad:
    return Bad(name, json.dumps({**CHAT, **changes}).encode(), code, param)


def _text(name: str, code: str, param: str | None, **changes: object) -> Bad:
    return Bad(name, json.dumps({**COMPLETION, **changes}).encode(), code, param, "completion")


def _field(name: str, value: object, code: str = "invalid_value", param: str | None = None) -> Bad:
    return _chat(f"{name}={str(value)[:24]}", code, param or name, **{name: value})


def _schema(name: str, schema: object, code: str) -> Bad:
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return _chat(name, code, "response_format.json_schema.schema", response_format=wrapped)


def _messages(name: str, messages: object, param: str, code: str = "invalid_value") -> Bad:
    return _chat(name, code, param, messages=messages)


def _nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _call(arguments: str) -> dict:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def _named_tool(description: str) -> dict:
    return {"type": "function", "function": {"name": "f", "description": description}}


_HALF = "\ud800"
_SHOWN = "\\ud800"
_ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "something"}}}
_PART = {"type": "text", "text": "a"}
_GOOD_TOOL = {"type": "function", "function": {"name": "f"}}
_IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
_BIG_ENUM = {"type": "string", "enum": [str(i) for i in range(1025)]}
_WIDE = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(4097)}}
_CIRCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
_EXPONENT = b'{"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "temperature": 1e400}'
_CONSTANT = b'{"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "temperature": %b}'

BAD_BODIES = [
    *_row(
        "R1",
        _raw("not json", b"hello"),
        _raw("empty", b""),
        _raw("byte order mark", b"\xef\xbb\xbf" + json.dumps(CHAT).encode()),
        _raw("UTF-16", json.dumps(CHAT).encode("utf-16")),
        _raw("invalid UTF-8", b'{"model": "\xff"}'),
        _raw("an array", b"[]"),
    ),
    *_row(
        "R2",
        _raw("duplicate keys", b'{"model": "a", "model": "b"}', "model"),
        _raw(
            "duplicate keys deep",
            b'{"model": "a", "messages": [{"role": "user", "role": "system", "content": ""}]}',
            "role",
        ),
    ),
    *_row(
        "R3",
        _raw("10 000 deep", b"[" * 10_000 + b"]" * 10_000),
        _raw("100 deep", b'{"model": "a", "messages": ' + b"[" * 100 + b"]" * 100 + b"}"),
    ),
    *_row(
        "R9",
        *[_field("n", value) for value in (1_000_000_000, 0, -1, "4", 4.0, 5, True, [1])],
    ),
    *_row("R10", *[_field(name, 2, "unsupported_parameter") for name in ("best_of", "use_beam_search")]),
    *_row(
        "R11",
        _raw("NaN", _CONSTANT % b"NaN", "temperature"),
        _raw("Infinity", _CONSTANT % b"-Infinity", "temperature"),
        _raw("5 000 digits", b'{"model": "a", "seed": ' + b"9" * 5000 + b"}"),
        _raw("1e400", _EXPONENT, "temperature"),
        *[_field("temperature", value) for value in (3, -0.1, "1", True, [1], {})],
        *[_field("top_p", value) for value in (-0.1, 1.1, "1")],
        *[_field("top_k", value) for value in (-2, 1.5, 10**6)],
        *[_field("seed", value) for value in (2**63, 1.5, "a")],
        *[_field("frequency_penalty", value) for value in (2.1, -2.1)],
    ),
    *_row(
        "R12",
        *[_field("max_tokens", value) for value in (0, -1, 2**63, 1e30, "5", 5.0, True)],
        *[_field("max_completion_tokens", value) for value in (0, 2**40)],
    ),
    *_row(
        "R14",
        _messages("no messages", [], "messages"),
        _messages("4097 messages", [{"role": "user", "content": "a"}] * 4097, "messages"),
        _messages("messages as text", "hi", "messages"),
        _messages("unknown role", [{"role": "root", "content": "a"}], "messages[0].role"),
        _messages("role as list", [{"role": ["user"], "content": "a"}], "messages[0].role"),
        _messages("no content", [{"role": "user"}], "messages[0].content"),
        _messages("number as content", [{"role": "user", "content": 1}], "messages[0].content"),
        _messages(
            "unknown message field", [{"role": "user", "content": "a", "x": 1}], "messages[0].x", "unknown_parameter"
        ),
        _messages("tool without id", [{"role": "tool", "content": "a"}], "messages[0].tool_call_id"),
        _messages("user with tool calls", [{"role": "user", "tool_calls": [{}]}], "messages[0].tool_calls"),
        _messages("user's refusal", [{"role": "user", "content": "a", "refusal": "b"}], "messages[0].refusal"),
        *[
            _messages(
                f"a past {key}",
                [{"role": "assistant", key: {"id": "a"}}],
                f"messages[0].{key}",
                "unsupported_parameter",
            )
            for key in ("audio", "function_call")
        ],
        _messages(
            "a user's refusal part",
            [{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}],
            "messages[0].content[0]",
            "unsupported_content",
        ),
        *[
            _messages(
                f"unknown key {path}", [{"role": "assistant", **message}], f"messages[0].{path}", "unknown_parameter"
            )
            for path, message in [
                ("documents", {"content": "a", "documents": [{"text": "b"}]}),
                ("prefix", {"content": "a", "prefix": True}),
                ("content[1].x", {"content": [_PART, {**_PART, "x": 1}]}),
                ("tool_calls[0].x", {"tool_calls": [{**_call("{}"), "x": 1}]}),
                ("tool_calls[0].function.x", {"tool_calls": [{**_call("{}"), "function": {"name": "f", "x": 1}}]}),
            ]
        ],
        _messages(
            "a custom tool call",
            [{"role": "assistant", "tool_calls": [{**_call("{}"), "type": "custom"}]}],
            "messages[0].tool_calls[0].type",
            "unsupported_parameter",
        ),
        Bad("messages null", b'{"model": "a", "messages": null}', "invalid_value", "messages"),
        Bad("messages absent", b'{"model": "a"}', "invalid_value", "messages"),
    ),
    *_row(
        "R15",
        *[
            _text(f"prompt {str(value)[:12]}", "invalid_value", "prompt", prompt=value)
            for value in (["a"] * 33, ["a"] * 1024, [], {"a": 1}, "", 5)
        ],
        *[
            _text(f"prompt {value}", "invalid_value", place, prompt=value)
            for value, place in (([1, 2], "prompt[0]"), (["a", [1]], "prompt[1]"), (["a", ""], "prompt[1]"))
        ],
        _text("17 prompts twice", "invalid_value", "prompt", prompt=["a"] * 17, n=2),
    ),
    *_row("R16", _field("prompt_embeds", "x", "unsupported_parameter")),
    *_row(
        "R17",
        _messages("image", [{"role": "user", "content": [_IMAGE]}], "messages[0].content[0]", "unsupported_content"),
        _messages(
            "audio",
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "messages[0].content[0]",
            "unsupported_content",
        ),
        _messages(
            "part as text", [{"role": "user", "content": ["a"]}], "messages[0].content[0]", "unsupported_content"
        ),
    ),
    *_row(
        "R18",
        _field("logprobs", 1),
        _chat("top_logprobs 20", "invalid_value", "top_logprobs", logprobs=True, top_logprobs=20),
        _chat("top_logprobs -1", "invalid_value", "top_logprobs", logprobs=True, top_logprobs=-1),
        _chat("several answers without a choice", "invalid_value", "n", n=2, temperature=0),
        _chat("top_logprobs alone", "invalid_value", "top_logprobs", top_logprobs=2),
        _field("prompt_logprobs", 1, "unsupported_parameter"),
        _text("logprobs 20", "invalid_value", "logprobs", logprobs=20),
    ),
    *_row(
        "R19",
        _field("logit_bias", {str(i): 1 for i in range(301)}),
        _field("logit_bias", {"x": 1}),
        _field("logit_bias", {"-1": 1}),
        _field("logit_bias", {"5": 101}, param="logit_bias.5"),
        _field("logit_bias", [1]),
    ),
    *_row(
        "R20",
        *[_field(name, [1], "unsupported_parameter") for name in ("allowed_token_ids", "bad_words", "stop_token_ids")],
    ),
    *_row(
        "R21",
        _field("stop", ["a"] * 17),
        _field("stop", ["a" * 65], param="stop[0]"),
        _field("stop", "a" * 1_000_000, param="stop[0]"),
        _field("stop", "", param="stop[0]"),
        _field("stop", [1], param="stop[0]"),
    ),
    *_row(
        "R22",
        _chat("min_tokens", "unsupported_parameter", "min_tokens", min_tokens=9, max_tokens=5),
        _field("ignore_eos", True, "unsupported_parameter"),
    ),
    *_row(
        "R23",
        _schema("schema depth 33", _nested(17), "schema_too_complex"),
        _schema("4097 nodes", _WIDE, "schema_too_complex"),
        _schema("1025 enum values", _BIG_ENUM, "schema_too_complex"),
        _schema("65 KiB", {"type": "string", "description": "a" * 66_000}, "schema_too_complex"),
        _schema("cyclic reference", _CIRCLE, "schema_too_complex"),
        _schema("reference to itself", {"items": {"$ref": "#"}}, "schema_too_complex"),
        _schema("remote reference", {"$ref": "https://example.com/schema"}, "schema_too_complex"),
        _schema("long pattern", {"type": "string", "pattern": "a" * 257}, "schema_too_complex"),
    ),
    *_row(
        "R24",
        _schema("dangling reference", {"$ref": "#/$defs/a"}, "schema_invalid"),
        _schema("unknown type", {"type": "something"}, "schema_invalid"),
        _schema("schema as list", [], "schema_invalid"),
        _chat("tool with unknown type", "schema_invalid", "tools[0].function.parameters", tools=[_TOOL]),
        _chat("257 KiB of tools", "schema_too_complex", "tools", tools=[_named_tool("a" * 27_000)] * 10),
        _chat("tool choice without tools", "invalid_value", "tool_choice", tool_choice="required"),
        *[_field("parallel_tool_calls", wrong) for wrong in ("true", 1, 0, [])],
        _text("parallel tool calls", "unknown_parameter", "parallel_tool_calls", parallel_tool_calls=True),
    ),
    *_row(
        "R25",
        _chat(
            "structural tag",
            "unsupported_parameter",
            "response_format.type",
            response_format={"type": "structural_tag"},
        ),
        *[
            _field(name, "(a+)+$", "unsupported_parameter")
            for name in ("guided_regex", "guided_grammar", "structured_outputs")
        ],
    ),
    *_row(
        "R27",
        _field("chat_template", "{% for i in range(10**9) %}", "unsupported_parameter"),
    ),
    *_row(
        "R28",
        *[
            _field("chat_template_kwargs", kwargs, "unsupported_parameter")
            for kwargs in ({"chat_template": "x"}, {"tokenize": True}, {"enable_thinking": False, "tools": []})
        ],
        _field("chat_template_kwargs", 1),
        _field("chat_template_kwargs", {"enable_thinking": "no"}, param="chat_template_kwargs.enable_thinking"),
    ),
    *_row(
        "R29",
        *[
            _field(name, "x", "unsupported_parameter")
            for name in ("cache_salt", "priority", "request_id", "session_id", "kv_transfer_params", "vllm_xargs")
        ],
    ),
    *_row(
        "R34",
        _messages("lone surrogate", [{"role": "user", "content": _HALF}], "content", "invalid_json"),
        _field(_HALF, 1, "invalid_json", _SHOWN),
        _raw("lone surrogate twice", b'{"model": "a", "\\ud800": 1, "\\ud800": 2}', _SHOWN),
        _messages("lone surrogate in a key", [{"role": "user", "content": "", _HALF: ""}], _SHOWN, "invalid_json"),
        _chat("lone surrogate in a tool", "invalid_json", _SHOWN, tools=[{**_TOOL, _HALF: 1}]),
        *[
            _chat("lone surrogate in a schema", "invalid_json", where, response_format={"schema": schema})
            for schema, where in [({"enum": ["a", _HALF]}, "enum"), ({"properties": {_HALF: {}}}, _SHOWN)]
        ],
        *[
            _messages(name, [{"role": "assistant", "tool_calls": [_call(arguments)]}], _ARGUMENTS)
            for name, arguments in [
                ("lone surrogate in arguments", '{"a": "\\udfff"}'),
                ("lone surrogate in arguments' keys", '{"\\uD800": 1}'),
            ]
        ],
    ),
    *_row(
        "F",
        Bad("no model", b'{"messages": []}', "invalid_value", "model"),
        *[
            _field(name, True, "unsupported_parameter")
            for name in (
                "echo",
                "return_token_ids",
                "continue_final_message",
                "return_prompt_text",
            )
        ],
        _field("truncate_prompt_tokens", 5, "unsupported_parameter"),
        _field("documents", [{}], "unsupported_parameter"),
        *[
            _field(name, value, "unsupported_parameter")
            for name, value in [
                ("best_of", True),
                ("modalities", ["text", "audio"]),
                ("web_search_options", {}),
                ("min_tokens", 1),
                ("function_call", {"name": "f"}),
                ("add_generation_prompt", False),
                ("include_reasoning", False),
                ("add_special_tokens", True),
            ]
        ],
        _chat(
            "padded chunks",
            "unsupported_parameter",
            "stream_options.include_obfuscation",
            stream=True,
            stream_options={"include_obfuscation": True},
        ),
        _field("temprature", 1, "unknown_parameter"),
        _field("x" * 1000, 1, "unknown_parameter", "x" * 64),
        _field("prompt", "hi", "unknown_parameter"),
        _chat(
            "stream options without stream", "invalid_value", "stream_options", stream_options={"include_usage": True}
        ),
        _chat("stream option", "unknown_parameter", "stream_options.x", stream=True, stream_options={"x": True}),
        *[
            _chat(f"{key} of {path}", "unknown_parameter", f"{path}.{key}", **{path.split("[")[0].split(".")[0]: value})
            for path, key, value in [
                ("tools[0]", "cache_control", [{**_GOOD_TOOL, "cache_control": {"type": "ephemeral"}}]),
                ("tools[1].function", "returns", [_GOOD_TOOL, {"type": "function", "function": {"returns": {}}}]),
                ("tool_choice", "mode", {"type": "function", "mode": "auto", "function": {"name": "f"}}),
                ("tool_choice.function", "x", {"type": "function", "function": {"name": "f", "x": 1}}),
                ("response_format", "schema", {"type": "json_object", "schema": {}}),
                ("response_format.json_schema", "x", {"type": "json_schema", "json_schema": {"name": "s", "x": 1}}),
            ]
        ],
        *[
            _chat(f"a type of {path}", "unsupported_parameter", f"{path}.type", **{path.split("[")[0]: value})
            for path, value in [
                ("tools[0]", [{"type": "custom", "custom": {"name": "f"}}]),
                ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
            ]
        ],
        _field("stream", 1),
        _text("completion with messages", "unknown_parameter", "messages", messages=[]),
        _text("completion with tools", "unknown_parameter", "tools", tools=[]),
        _text("suffix", "unsupported_parameter", "suffix", suffix="a"),
        _text("echo", "unsupported_parameter", "echo", echo=True),
        *[
            refused(f"{name} as the table has it", "unsupported_parameter", name, **{name: 2})
            for name in sorted(REFUSED)
            for refused in (_chat, _text)
        ],
    ),
]
"""Each is refused with 400. Row F is of fields that no row names."""
