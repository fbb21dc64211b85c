"""The body of Anthropic's ``/v1/messages``, read by an allow-list into the same Call as OpenAI's chat completions.

openai_request.py builds the engine's body for both APIs; anthropic_messages.py converts the conversation.
"""

from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api import fields, tool_schemas
from data_plane.gateway.api.anthropic_messages import chat_messages
from data_plane.gateway.api.fields import invalid, unknown
from data_plane.gateway.api.openai_request import BodyLimits, Call, Kind, check_combinations, empty_call, read_object

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
_tokens = fields.integer(1, 2**31 - 1)


def parse_messages(kind: Kind, raw: bytes, limits: BodyLimits) -> Call:
    """A body of ``/v1/messages`` (kind chat) or of ``count_tokens`` (kind tokenize). Raises InvalidRequest."""
    body = read_object(raw, limits)
    call = empty_call(kind, body.pop("model", None))
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
            call.fields["stop"] = fields.stop(name, value)
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
    return tool_schemas.check_tools(name, [_as_function(f"{name}.{index}", tool) for index, tool in enumerate(value)])


def _as_function(where: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(where, "an object")
    if tool.get("type") not in (None, "custom"):
        raise InvalidRequest(
            f"`{where}.type` must be `custom`: tools that run on a server are not offered here.",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    function: dict[str, Any] = {}
    for key, item in tool.items():
        match key:
            case "name" | "description" | "strict":
                function[key] = item
            case "input_schema":
                function["parameters"] = item
            case "type" | "cache_control" | "eager_input_streaming":
                pass
            case _:
                raise unknown(f"{where}.{key}")
    if "parameters" not in function:
        raise invalid(f"{where}.input_schema", "a JSON Schema")
    return {"type": "function", "function": function}


def _tool_choice(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    kind = value.get("type")
    if kind not in ("auto", "any", "none", "tool"):
        raise invalid(f"{name}.type", "`auto`, `any`, `none` or `tool`")
    for key in value:
        if key not in ("type", "disable_parallel_tool_use") and not (key == "name" and kind == "tool"):
            raise unknown(f"{name}.{key}")
    chosen: dict[str, Any] = {}
    if kind == "tool":
        named = {"type": "function", "function": {"name": value.get("name")}}
        chosen["tool_choice"] = tool_schemas.check_tool_choice(name, named)
    else:
        chosen["tool_choice"] = "required" if kind == "any" else kind
    if (single := value.get("disable_parallel_tool_use")) is not None:
        chosen["parallel_tool_calls"] = not fields.boolean(f"{name}.disable_parallel_tool_use", single)
    return chosen


def _output_config(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    for key in value:
        if key not in ("effort", "format"):
            raise unknown(f"{name}.{key}")
    form = value.get("format")
    if form is None:
        return {}
    if not isinstance(form, dict) or form.keys() != {"type", "schema"} or form["type"] != "json_schema":
        raise invalid(f"{name}.format", '{"type": "json_schema", "schema": ...}')
    schema = tool_schemas.check_schema(f"{name}.format.schema", form["schema"])
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def _session(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    for key in value:
        if key != "user_id":
            raise unknown(f"{name}.{key}")
    user = value.get("user_id")
    return "" if user is None else fields.text(f"{name}.user_id", user, chars_max=fields.SESSION_CHARS_MAX)
