"""Checks chat messages and rebuilds them as plain text messages for the chat templates of gateway and engine."""

import json
from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import invalid, text, unknown, unsupported

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
PARTS_MAX: Final = 1024
TOOL_CALLS_MAX: Final = 256
NAME_CHARS_MAX: Final = 128
CALL_ID_CHARS_MAX: Final = 4096
"""LiteLLM puts signatures of thoughts into the ids of calls."""

MARKS: Final = frozenset(
    {"annotations", "cache_control", "citations", "created_at", "executed_tools", "extra_content", "finish_reason",
     "id", "index", "logprobs", "parsed", "parsed_arguments", "phase", "provider_specific_fields", "reasoning",
     "reasoning_content", "reasoning_details", "reasoning_items", "signature", "status", "stop_reason", "thinking",
     "thinking_blocks", "timestamp", "type", "usage"}
)  # fmt: skip
"""Members of messages, their parts and calls that servers' answers and clients' histories have, and no prompt."""

THOUGHTS: Final = frozenset({"reasoning", "redacted_thinking", "thinking"})
"""Types of an assistant's parts that no prompt contains either."""

_FIELDS: Final = ("role", "content", "name", "refusal", "tool_calls", "tool_call_id", "audio", "function_call")
_PLAIN: Final = {"role", "content"}
_SPEAKERS: Final = ("user", "assistant", "system")
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text"}
_SAID: Final = {**_TEXTS, "refusal": "refusal"}


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


def _members(where: str, value: Any, *keys: str) -> dict[str, Any]:
    """The members of a part of the history that are not null. Others than ``keys`` are left out where they are marks,
    empty or false: they add nothing to a prompt. Raises InvalidRequest that names any other.
    """
    if not isinstance(value, dict):
        raise invalid(where, "an object")
    found = {}
    for key, member in value.items():
        if key in keys:
            if member is not None:
                found[key] = member
        elif member and key not in MARKS:
            raise unknown(f"{where}.{key}")
    return found


def _is_plain(message: Any) -> bool:
    """Whether this is what most messages are, so that nothing else has to be looked for."""
    return (
        isinstance(message, dict)
        and message.keys() == _PLAIN
        and message["role"] in _SPEAKERS
        and isinstance(message["content"], str)
    )


def _check_message(where: str, message: Any) -> dict[str, Any]:
    if _is_plain(message):
        return {"role": message["role"], "content": text(f"{where}.content", message["content"])}
    given = _members(where, message, *_FIELDS)
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role", "one of " + ", ".join(sorted(ROLES)))
    for key in ("audio", "function_call"):
        if given.get(key):
            raise unsupported(f"{where}.{key}", "send text and `tool_calls`")
    checked: dict[str, Any] = {"role": role}
    if (calls := given.get("tool_calls", [])) != []:  # SDKs may store an answer without calls as an empty list
        checked["tool_calls"] = _check_calls(f"{where}.tool_calls", calls, role)
    content = given.get("content")
    if content is None and role not in ("assistant", "tool"):
        raise invalid(f"{where}.content", "a string or a list of text parts")
    checked["content"] = "" if content is None else _check_content(f"{where}.content", content, role)
    if refusal := given.get("refusal"):
        if role != "assistant":
            raise invalid(f"{where}.refusal", "absent unless the role is assistant")
        refused = text(f"{where}.refusal", refusal)  # it is what the assistant said
        checked["content"] = f"{checked['content']}\n{refused}" if checked["content"] else refused
    if given.get("name", "") != "":
        checked["name"] = text(f"{where}.name", given["name"], chars_max=NAME_CHARS_MAX)
    if role == "tool":
        called = given.get("tool_call_id")
        checked["tool_call_id"] = text(f"{where}.tool_call_id", called, chars_max=CALL_ID_CHARS_MAX, empty=False)
    elif given.get("tool_call_id"):
        raise invalid(f"{where}.tool_call_id", "absent unless the role is tool")
    return checked


def _check_calls(where: str, calls: Any, role: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise invalid(where, "absent unless the role is assistant")
    if not isinstance(calls, list) or not 1 <= len(calls) <= TOOL_CALLS_MAX:
        raise invalid(where, f"a list of 1 to {TOOL_CALLS_MAX} calls")
    return [_check_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _check_content(where: str, content: Any, role: str) -> str:
    if isinstance(content, str):
        return text(where, content)
    if not isinstance(content, list) or len(content) > PARTS_MAX:
        raise invalid(where, f"a string or a list of at most {PARTS_MAX} text parts")
    assistant = role == "assistant"
    parts = []
    for index, part in enumerate(content):
        here = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        key = (_SAID if assistant else _TEXTS).get(kind) if isinstance(kind, str) else None
        if key is not None:
            parts.append(text(f"{here}.{key}", _members(here, part, "type", key).get(key)))
        elif not (assistant and isinstance(kind, str) and kind in THOUGHTS):
            raise InvalidRequest(
                f"`{here}` must be a text part: images, audio, video and files are not supported.",
                code="unsupported_content",
                param=here,
            )
    return "\n".join(part for part in parts if part)


def _check_call(where: str, call: Any) -> dict[str, Any]:
    given = _members(where, call, "id", "type", "function")
    if given.get("type", "function") != "function":
        raise unsupported(f"{where}.type", 'it must be "function"')
    function = _members(f"{where}.function", given.get("function"), "name", "arguments")
    return {
        "id": text(f"{where}.id", given.get("id"), chars_max=CALL_ID_CHARS_MAX, empty=False),
        "type": "function",
        "function": {
            "name": text(f"{where}.function.name", function.get("name"), chars_max=NAME_CHARS_MAX, empty=False),
            "arguments": _check_arguments(f"{where}.function.arguments", function.get("arguments", "")),
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
