"""The body of Anthropic's ``/v1/messages``, read by an allow-list into the same Call as OpenAI's chat completions.

openai_request.py builds the engine's body for both APIs; anthropic_messages.py converts the conversation.
"""

from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api import fields, tool_schemas
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
    "messages": "turns of `text`, `tool_use` and `tool_result` blocks; the last is the user's",
    "system": "a string or text blocks",
    "max_tokens": "required, as in Anthropic's API; the most tokens of the answer",
    "temperature": "0 to 2",
    "top_p": "up to 1",
    "top_k": "up to 1000",
    "stop_sequences": "at most 4 strings of 1 to 64 characters",
    "stream": "true for Anthropic's events",
    "tools": "1 to 32 client tools, each with a bounded schema",
    "tool_choice": "`auto`, `any`, `none` or `tool` with a name; `disable_parallel_tool_use` when a call is forced",
    "output_config": "`format` with a bounded JSON Schema; `effort` has no effect",
    "metadata": "`user_id` is a session, like OpenAI's `user`; it is not stored",
    "thinking": '`{"type": "disabled"}` only: the base models do not reason before they answer',
}

IGNORED: Final[dict[str, str]] = {
    "cache_control": "prefixes are cached without marks, and never across tenants",
    "service_tier": "requests of this API are of the default tier",
}

REFUSED: Final = frozenset(
    {"container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "output_format", "prefill",
     "speed", "user_profile_id", "workspace_id"}
)  # fmt: skip

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
    call.messages = chat_messages(
        body.pop("system", None), body.pop("messages", None), messages_max=limits.messages_max
    )
    if kind == "chat":
        call.max_tokens = _tokens("max_tokens", body.pop("max_tokens", None))
    for name, value in body.items():
        if value is None and (name in ACCEPTED or name in IGNORED or name in REFUSED):
            continue
        if kind == "tokenize" and name in _NOT_COUNTED:
            raise unknown(name)
        if not _read_field(call, name, value):
            raise fields.unsupported(name) if name in REFUSED else unknown(name)
    check_combinations(call, {})
    if kind == "tokenize":
        call.fields.clear()
    call.usage_shown = "continuous"  # Anthropic's events begin and end with counts
    return call


def _read_field(call: Call, name: str, value: Any) -> bool:
    """Read one field. Returns False when the field is unknown."""
    match name:
        case "temperature" | "top_p" | "top_k":
            call.fields[name] = fields.SAMPLING[name](name, value)
        case "stop_sequences":
            if not isinstance(value, list):
                raise invalid(name, "a list of at most 4 strings")
            call.fields["stop"] = fields.stop(name, value, ".{}")
        case "stream":
            call.stream = fields.boolean(name, value)
        case "tools":
            call.tools = _tools(name, value)
        case "tool_choice":
            call.fields |= _tool_choice(name, value)
        case "output_config":
            call.fields |= _output_config(name, value)
        case "metadata":
            call.session = _session(name, value)
        case "thinking":
            if not isinstance(value, dict) or value != {"type": "disabled"}:
                raise fields.unsupported("thinking")
        case _:
            return name in IGNORED
    return True


def _tools(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise invalid(name, f"a list of 1 to {tool_schemas.TOOLS_MAX} tools")
    if not value:
        raise invalid(name, "absent or not empty")
    return tool_schemas.as_tools(name, [_as_function(f"{name}.{index}", tool) for index, tool in enumerate(value)])


def _as_function(where: str, tool: Any) -> dict[str, Any]:
    if isinstance(tool, dict) and tool.get("type") not in (None, "custom"):
        raise InvalidRequest(
            f"`{where}.type` must be `custom`: tools that run on a server are not offered here.",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    function = tool_schemas.check_function(where, tool, schema="input_schema", passed=_TOOL_MARKS)
    if "parameters" not in function:
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
    if (form := fields.members(name, value, "effort", "format").get("format")) is None:
        return {}
    given = fields.members(f"{name}.format", form, "type", "schema")
    if given.get("type") != "json_schema":
        raise invalid(f"{name}.format.type", "`json_schema`")
    schema = tool_schemas.check_schema(f"{name}.format.schema", given.get("schema"))
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def _session(name: str, value: Any) -> str:
    user = fields.members(name, value, "user_id").get("user_id")
    return "" if user is None else fields.text(f"{name}.user_id", user, chars_max=fields.SESSION_CHARS_MAX)
