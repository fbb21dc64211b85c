"""Checks chat messages and rebuilds them as plain text messages for the chat templates of gateway and engine."""

import json
from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import invalid, text, unknown

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
PARTS_MAX: Final = 256
TOOL_CALLS_MAX: Final = 32
_FIELDS: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_ANSWER_FIELDS: Final = frozenset({"annotations", "audio", "function_call", "refusal"})
"""Fields of answers that SDKs send back with the history, null or empty."""


def check_messages(name: str, value: Any, *, messages_max: int) -> list[dict[str, Any]]:
    """Between 1 and ``messages_max`` messages. Text parts are joined as vLLM 0.32 does (renderers/chat_utils.py)."""
    if not isinstance(value, list) or not 1 <= len(value) <= messages_max:
        raise invalid(name, f"a list of 1 to {messages_max} messages")
    return [_check_message(f"{name}[{index}]", message) for index, message in enumerate(value)]


def texts_of(messages: list[dict[str, Any]]) -> str:
    """Every string of checked messages that the caller wrote, joined for the search for special tokens. Arguments are
    included as templates render them too, so that an escape in their JSON hides nothing.
    """
    parts: list[str] = []
    for message in messages:
        parts.append(message["content"])
        parts.append(message.get("name", ""))
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            parts += (call["id"], call["function"]["name"], arguments)
            if "\\" in arguments:
                parts.append(json.dumps(parsed_arguments(arguments), ensure_ascii=False))
        parts.append(message.get("tool_call_id", ""))
    return "\0".join(parts)


def parsed_arguments(arguments: str) -> dict[str, Any]:
    """A call's arguments as templates see them in gateway and engine; an empty object when they are not an object."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _check_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(where, "an object")
    for key in message:
        if key in _ANSWER_FIELDS:
            if message[key]:
                raise invalid(f"{where}.{key}", "null or absent")
        elif key not in _FIELDS:
            raise unknown(f"{where}.{key}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role", "one of " + ", ".join(sorted(ROLES)))
    checked: dict[str, Any] = {"role": role}
    calls = message.get("tool_calls")
    if calls is not None and (
        calls != [] or role != "assistant"
    ):  # SDKs may store an answer without calls as an empty list
        checked["tool_calls"] = _check_calls(f"{where}.tool_calls", calls, role)
    content = message.get("content")
    if content is None and "tool_calls" not in checked:
        raise invalid(f"{where}.content", "a string or a list of text parts")
    checked["content"] = "" if content is None else _check_content(f"{where}.content", content)
    if message.get("name") is not None:
        checked["name"] = text(f"{where}.name", message["name"], chars_max=64, empty=False)
    if role == "tool":
        checked["tool_call_id"] = text(f"{where}.tool_call_id", message.get("tool_call_id"), chars_max=128, empty=False)
    elif message.get("tool_call_id") is not None:
        raise invalid(f"{where}.tool_call_id", "absent unless the role is tool")
    return checked


def _check_calls(where: str, calls: Any, role: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise invalid(where, "absent unless the role is assistant")
    if not isinstance(calls, list) or not 1 <= len(calls) <= TOOL_CALLS_MAX:
        raise invalid(where, f"a list of 1 to {TOOL_CALLS_MAX} calls")
    return [_check_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _check_content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return text(where, content)
    if not isinstance(content, list) or len(content) > PARTS_MAX:
        raise invalid(where, f"a string or a list of at most {PARTS_MAX} text parts")
    parts = []
    for index, part in enumerate(content):
        here = f"{where}[{index}]"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise InvalidRequest(
                f"`{here}` must be a text part: images, audio, video and files are not supported.",
                code="unsupported_content",
                param=here,
            )
        if part.keys() != {"type", "text"}:
            raise invalid(here, '{"type": "text", "text": ...}')
        parts.append(text(f"{here}.text", part["text"]))
    return "\n".join(part for part in parts if part)


def _check_call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or call.keys() != {"id", "type", "function"} or call["type"] != "function":
        raise invalid(where, '{"id": ..., "type": "function", "function": {...}}')
    function = call["function"]
    if not isinstance(function, dict) or function.keys() != {"name", "arguments"}:
        raise invalid(f"{where}.function", '{"name": ..., "arguments": ...}')
    return {
        "id": text(f"{where}.id", call["id"], chars_max=128, empty=False),
        "type": "function",
        "function": {
            "name": text(f"{where}.function.name", function["name"], chars_max=64, empty=False),
            "arguments": _check_arguments(f"{where}.function.arguments", function["arguments"]),
        },
    }


def _check_arguments(where: str, value: Any) -> str:
    """JSON text that engines parse. The strings in it must be valid text too."""
    arguments = text(where, value)
    try:
        text(where, json.dumps(parsed_arguments(arguments), ensure_ascii=False))
    except RecursionError:
        raise invalid(where, "JSON with less nesting") from None
    return arguments
