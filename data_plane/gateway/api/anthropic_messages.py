"""Converts Anthropic's conversation (system prompt, turns of content blocks) into the chat messages of chat templates.

Text, tool calls and tool results have a counterpart; every other kind of block is refused by name. Other fields of a
request are in anthropic_request.py.
"""

import json
from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import invalid, text, unknown
from data_plane.gateway.api.openai_messages import PARTS_MAX, TOOL_CALLS_MAX

_IGNORED_KEYS: Final = frozenset({"cache_control", "citations"})
"""Keys of any block that have no effect: prefixes are cached without marks, and there are no citations."""


def chat_messages(system: Any, turns: Any, *, messages_max: int) -> list[dict[str, Any]]:
    """``system`` and ``messages`` as chat messages. A turn with tool results becomes several messages. Raises
    InvalidRequest that names the block.
    """
    if not isinstance(turns, list) or not 1 <= len(turns) <= messages_max:
        raise invalid("messages", f"a list of 1 to {messages_max} messages")
    chat: list[dict[str, Any]] = []
    if system is not None:
        chat.append({"role": "system", "content": _texts("system", system)})
    for index, turn in enumerate(turns):
        chat += _turn(f"messages.{index}", turn)
    if chat[-1]["role"] == "assistant":
        raise invalid(f"messages.{len(turns) - 1}.role", "`user`: a partial answer from the caller cannot be continued")
    return chat


def _turn(where: str, turn: Any) -> list[dict[str, Any]]:
    if not isinstance(turn, dict):
        raise invalid(where, "an object")
    for key in turn:
        if key not in ("role", "content"):
            raise unknown(f"{where}.{key}")
    content = turn.get("content")
    match turn.get("role"):
        case "user":
            return _user(f"{where}.content", content)
        case "assistant":
            return [_assistant(f"{where}.content", content)]
    raise invalid(f"{where}.role", "`user` or `assistant`")


def _user(where: str, content: Any) -> list[dict[str, Any]]:
    """Tool results first, one message each, then the text."""
    if isinstance(content, str):
        return [{"role": "user", "content": text(where, content)}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for here, block in _blocks(where, content):
        if block.get("type") == "tool_result":
            if texts:
                raise invalid(here, "before the turn's text")
            results.append(_tool_result(here, block))
        else:
            texts.append(_text_block(here, block))
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(part for part in texts if part)})
    return results


def _assistant(where: str, content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": text(where, content)}
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for here, block in _blocks(where, content):
        if block.get("type") == "tool_use":
            calls.append(_tool_use(here, block))
        else:
            texts.append(_text_block(here, block))
    if len(calls) > TOOL_CALLS_MAX:
        raise invalid(where, f"at most {TOOL_CALLS_MAX} tool calls")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(part for part in texts if part)}
    return {**message, "tool_calls": calls} if calls else message


def _blocks(where: str, content: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(content, list) or not 1 <= len(content) <= PARTS_MAX:
        raise invalid(where, f"a string or a list of 1 to {PARTS_MAX} content blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise invalid(f"{where}.{index}", "an object")
    return [(f"{where}.{index}", block) for index, block in enumerate(content)]


def _require_known_keys(where: str, block: dict[str, Any], *allowed: str) -> None:
    for key in block:
        if key not in allowed and key not in _IGNORED_KEYS and key != "type":
            raise unknown(f"{where}.{key}")


def _text_block(where: str, block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind != "text":
        shown = kind[:32] if isinstance(kind, str) else "of no type"
        raise InvalidRequest(
            f"`{where}` is {shown}: images, documents, thinking and server tools are not supported here.",
            code="unsupported_content",
            param=where,
        )
    _require_known_keys(where, block, "text")
    return text(f"{where}.text", block.get("text"))


def _texts(where: str, value: Any) -> str:
    if isinstance(value, str):
        return text(where, value)
    return "\n".join(part for part in (_text_block(here, block) for here, block in _blocks(where, value)) if part)


def _tool_result(where: str, block: dict[str, Any]) -> dict[str, Any]:
    _require_known_keys(where, block, "tool_use_id", "content", "is_error")
    name = text(f"{where}.tool_use_id", block.get("tool_use_id"), chars_max=128, empty=False)
    content = block.get("content")
    return {"role": "tool", "content": _texts(f"{where}.content", content) if content else "", "tool_call_id": name}


def _tool_use(where: str, block: dict[str, Any]) -> dict[str, Any]:
    _require_known_keys(where, block, "id", "name", "input", "caller")
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.input", "an object")
    return {
        "id": text(f"{where}.id", block.get("id"), chars_max=128, empty=False),
        "type": "function",
        "function": {
            "name": text(f"{where}.name", block.get("name"), chars_max=64, empty=False),
            "arguments": text(f"{where}.input", json.dumps(arguments, ensure_ascii=False)),
        },
    }
