"""The body of Anthropic's ``/v1/messages``, read by an allow-list into the same Call as OpenAI's chat completions.

openai_request.py builds the engine's body for both APIs; anthropic_messages.py converts the conversation.
"""

from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api import fields, schema_constraints, tool_schemas
from data_plane.gateway.api.anthropic_messages import chat_messages
from data_plane.gateway.api.fields import invalid, unknown
from data_plane.gateway.api.openai_request import (
    BodyLimits,
    Call,
    Kind,
    Paths,
    check_combinations,
    empty_call,
    read_object,
)

ACCEPTED: Final[dict[str, str]] = {
    "model": "like chat completions",
    "messages": "turns of `text`, `tool_use` and `tool_result` blocks; the answer continues the text of a last turn "
    "that is the assistant's",
    "system": "a string or text blocks; one that begins with `x-anthropic-billing-header` has no effect",
    "max_tokens": "required, as in Anthropic's API; the most tokens of the answer",
    "temperature": "0 to 2",
    "top_p": "up to 1",
    "top_k": "up to 1000",
    "stop_sequences": f"at most {fields.STOPS_MAX} strings of 1 to 64 characters",
    "stream": "true for Anthropic's events",
    "tools": "client tools, each with a bounded schema; bounded in bytes together",
    "tool_choice": "`auto`, `any`, `none` or `tool` with a name; `disable_parallel_tool_use` when a call is forced",
    "output_config": "`format` with a bounded JSON Schema; `effort` has no effect",
    "output_format": "the earlier name of `output_config.format`",
    "metadata": "`user_id` is a session, like OpenAI's `user`; it is not stored",
    "thinking": "`disabled`, or a type that leaves the amount to the model: the base models do not reason before they "
    "answer; `enabled` is refused",
    "context_management": "`clear_thinking_20251015` only, which has no effect: thinking of earlier turns is not shown",
    "allow_fallback": "like chat completions",
}

IGNORED: Final[dict[str, str]] = {
    "cache_control": "prefixes are cached without marks, and never across tenants",
    "service_tier": "requests of this API are of the default tier",
}

REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "billing_policy": (),
    "compaction": (),
    "container": (),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ("default",),
    "inference_geo": ("global",),
    "mcp_servers": (),
    "prefill": (),
    "speed": ("standard",),
    "thread": (),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Fields that are refused by name, unless they ask for nothing: with one of these values, or with an empty one."""

_TOOL_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "allowed_callers": (["direct"],), "defer_loading": (), "input_examples": (),
}  # fmt: skip
_THINKING: Final = ("disabled", "adaptive", "between_tools")
_CLEAR_THINKING: Final = "clear_thinking_20251015"
_CONTINUED: Final = {"add_generation_prompt": False, "continue_final_message": True}
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_NOT_COUNTED: Final = frozenset({"max_tokens", "stream", "stop_sequences", *_SAMPLING})
_PATHS: Final = Paths("tools.{}.input_schema", "tool_choice.name", "output_config.format.schema")
_TOOL_MARKS: Final = frozenset({"type", "cache_control", "eager_input_streaming"})
_tokens = fields.integer(1, 2**31 - 1)


def parse_messages(kind: Kind, raw: bytes, limits: BodyLimits) -> Call:
    """A body of ``/v1/messages`` (kind chat) or of ``count_tokens`` (kind tokenize). Raises InvalidRequest."""
    body = read_object(raw, limits)
    call = empty_call(kind, body.pop("model", None))
    call.paths = _PATHS
    chat = chat_messages(body.pop("system", None), body.pop("messages", None), messages_max=limits.messages_max)
    call.messages = chat
    if kind == "chat":
        call.max_tokens = _tokens("max_tokens", body.pop("max_tokens", None))
    for name, value in body.items():
        if value is None:
            continue
        if name in REFUSED:
            if not _asks_nothing(value, REFUSED[name]):
                raise _unsupported(name)
        elif (kind == "tokenize" and name in _NOT_COUNTED) or not _read_field(call, name, value):
            raise unknown(name)
    check_combinations(call, {}, limits)
    continued = chat[-1]["role"] == "assistant"
    if continued:
        _require_free_continuation(call)
    if kind == "tokenize":
        call.fields.clear()
    if continued:
        call.fields |= _CONTINUED
    call.usage_shown = "continuous"  # Anthropic's events begin and end with counts
    return call


def _unsupported(name: str) -> InvalidRequest:
    """The SDK's tool runner asks for a thread, and goes on without one where the error has this code."""
    if name == "thread":
        return InvalidRequest(
            "`thread` is not supported; send all messages with each request.",
            code="thread_unsupported_request",
            param=name,
        )
    return fields.unsupported(name)


def _asks_nothing(value: Any, neutral: tuple[Any, ...] = ()) -> bool:
    """Whether a value is one of ``neutral``, or empty at every depth."""
    if isinstance(value, dict):
        return all(map(_asks_nothing, value.values()))
    return value is None or value is False or value in ("", [], *neutral)


def _require_free_continuation(call: Call) -> None:
    """Refuse what would shape an answer from its start, where the caller has written its start."""
    if call.fields.get("tool_choice", "auto") not in ("auto", "none"):
        raise invalid("tool_choice", "`auto` or `none` where the last message is the assistant's")
    if "response_format" in call.fields:
        name = call.paths.answer_schema.removesuffix(".schema")
        raise invalid(name, "absent where the last message is the assistant's")


def _read_field(call: Call, name: str, value: Any) -> bool:
    """Read one field. Returns False when the field is unknown."""
    match name:
        case "temperature" | "top_p" | "top_k":
            call.fields[name] = fields.SAMPLING[name](name, value)
        case "stop_sequences":
            if not isinstance(value, list):
                raise invalid(name, f"a list of at most {fields.STOPS_MAX} strings")
            call.fields["stop"] = fields.stop(name, value, ".{}")
        case "stream" | "allow_fallback":
            setattr(call, name, fields.boolean(name, value))
        case "tools":
            call.tools = _tools(name, value)
        case "tool_choice":
            call.fields |= _tool_choice(name, value)
        case "output_config":
            call.fields |= _output_config(name, value)
        case "output_format":
            call.fields |= _answer_format(name, value)
            call.paths = call.paths._replace(answer_schema=f"{name}.schema")
        case "metadata":
            call.session = _session(name, value)
        case "thinking":
            _check_thinking(name, value)
        case "context_management":
            _check_edits(f"{name}.edits", fields.members(name, value, "edits").get("edits", []))
        case _:
            return name in IGNORED
    return True


def _tools(name: str, value: Any) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        raise invalid(name, "a list of tools")
    return [_as_function(f"{name}.{index}", tool) for index, tool in enumerate(value)] or None


def _as_function(where: str, tool: Any) -> dict[str, Any]:
    if isinstance(tool, dict) and tool.get("type") not in (None, "custom"):
        raise InvalidRequest(
            f"`{where}.type` must be `custom`: Anthropic's own tools are not offered here.",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    for name, neutral in _TOOL_REFUSED.items():
        if isinstance(tool, dict) and not _asks_nothing(tool.get(name), neutral):
            raise fields.unsupported(f"{where}.{name}")
    passed = _TOOL_MARKS | _TOOL_REFUSED.keys()
    function = tool_schemas.check_function(where, tool, schema="input_schema", passed=passed, index=".{}")
    if "parameters" not in function["function"]:
        raise invalid(f"{where}.input_schema", "a JSON Schema")
    return function


def _tool_choice(name: str, value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    named = ("name",) if kind == "tool" else ()
    given = fields.members(name, value, "type", "disable_parallel_tool_use", *named)
    match kind:
        case "auto" | "none":
            choice: Any = kind
        case "any":
            choice = "required"
        case "tool":
            tool = tool_schemas.check_name(f"{name}.name", given.get("name"))
            choice = {"type": "function", "function": {"name": tool}}
        case _:
            raise invalid(f"{name}.type", "`auto`, `any`, `none` or `tool`")
    if (single := given.get("disable_parallel_tool_use")) is None:
        return {"tool_choice": choice}
    parallel = not fields.boolean(f"{name}.disable_parallel_tool_use", single)
    return {"tool_choice": choice, "parallel_tool_calls": parallel}


def _output_config(name: str, value: Any) -> dict[str, Any]:
    form = fields.members(name, value, "effort", "format").get("format")
    return {} if form is None else _answer_format(f"{name}.format", form)


def _answer_format(name: str, value: Any) -> dict[str, Any]:
    given = fields.members(name, value, "type", "schema")
    if given.get("type") != "json_schema":
        raise invalid(f"{name}.type", "`json_schema`")
    schema = tool_schemas.check_schema(f"{name}.schema", given.get("schema"))
    schema_constraints.check(f"{name}.schema", schema, enforced=True, index=".{}", fix="")
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def _check_thinking(name: str, value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") not in _THINKING:
        raise fields.unsupported(
            name, "send `adaptive` or `disabled`, since models here do not think before they answer"
        )
    fields.members(name, value, "type", "display")


def _check_edits(name: str, edits: Any) -> None:
    if not isinstance(edits, list):
        raise invalid(name, "a list")
    for index, edit in enumerate(edits):
        if not isinstance(edit, dict) or edit.get("type") != _CLEAR_THINKING:
            raise fields.unsupported(f"{name}.{index}", f"only `{_CLEAR_THINKING}` is accepted")


def _session(name: str, value: Any) -> str:
    user = fields.members(name, value, "user_id").get("user_id")
    return "" if user is None else fields.text(f"{name}.user_id", user, chars_max=fields.SESSION_CHARS_MAX)
