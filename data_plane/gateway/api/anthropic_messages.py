"""Converts Anthropic's conversation (system prompt, turns of content blocks) into the chat messages of chat templates.

Text, tool calls and tool results have a counterpart. Marks without effect on the prompt are passed over, null is the
same as absent, and every other kind of block is refused by name. Other fields of a request are in anthropic_request.py.
"""

import json
from typing import Any, Final

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import invalid, members, text
from data_plane.gateway.api.openai_messages import CALL_ID_CHARS_MAX, NAME_CHARS_MAX, PARTS_MAX, TOOL_CALLS_MAX

_BLOCK_MARKS: Final = frozenset({"type", "cache_control", "caller", "citations", "is_error", "parsed_output"})
"""Members of any block that have no effect: prefixes are cached without marks, and there are no citations."""

_TURN_MARKS: Final = frozenset(
    {"container", "context_management", "diagnostics", "id", "model", "stop_details", "stop_reason", "stop_sequence",
     "type", "usage"}
)  # fmt: skip
"""Members of an answer that is sent back as it came."""

_UNPROMPTED: Final = frozenset({"fallback", "redacted_thinking", "thinking"})
"""Blocks in earlier answers of other servers. Models here do not see how an earlier answer came about."""

_BILLING_HEADER: Final = "x-anthropic-billing-header"
"""The first system block of Claude Code: another one in each request, which would defeat the prefix cache."""


def chat_messages(system: Any, turns: Any, *, messages_max: int) -> list[dict[str, Any]]:
    """``system`` and ``messages`` as chat messages. A turn with tool results becomes several messages. The last message
    is the assistant's where its text is to be continued. Raises InvalidRequest that names the block.
    """
    if not isinstance(turns, list) or not 1 <= len(turns) <= messages_max:
        raise invalid("messages", f"a list of 1 to {messages_max} messages")
    chat = _system("system", "" if system is None else system)
    for index, turn in enumerate(turns):
        chat += _turn(f"messages.{index}", turn)
    if chat and chat[-1]["role"] == "assistant":
        _check_continued(f"messages.{len(turns) - 1}.content", chat[-1])
        if not chat[-1]["content"]:
            chat.pop()  # nothing to continue
    if not chat:
        raise invalid("messages", "a conversation that is not empty")
    return chat


def _check_continued(where: str, message: dict[str, Any]) -> None:
    if "tool_calls" in message:
        raise invalid(where, "followed by the results of its tool calls")
    if message["content"] != message["content"].rstrip():
        raise invalid(where, "text without white space at its end, since the answer continues it")


def _turn(where: str, turn: Any) -> list[dict[str, Any]]:
    given = members(where, turn, "role", "content", passed=_TURN_MARKS)
    content = given.get("content")
    match given.get("role"):
        case "user":
            return _user(f"{where}.content", content)
        case "assistant":
            return [_assistant(f"{where}.content", content)]
        case "system":
            return _system(f"{where}.content", content)
    raise invalid(f"{where}.role", "`user`, `assistant` or `system`")


def _system(where: str, content: Any) -> list[dict[str, Any]]:
    """One message, or none without text."""
    written = _texts(where, content, without=_BILLING_HEADER)
    return [{"role": "system", "content": written}] if written else []


def _user(where: str, content: Any) -> list[dict[str, Any]]:
    """Tool results first, one message each, then the text."""
    if isinstance(content, str):
        return [{"role": "user", "content": text(where, content)}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for here, block in _blocks(where, content, empty=False):
        if block.get("type") == "tool_result":
            if texts:
                raise invalid(here, "before the turn's text")
            results.append(_tool_result(here, block))
        else:
            texts.append(_text_block(here, block))
    if texts or not results:
        results.append({"role": "user", "content": _joined(texts)})
    return results


def _assistant(where: str, content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": text(where, content)}
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for here, block in _blocks(where, content):
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_tool_use(here, block))
        elif not isinstance(kind, str) or kind not in _UNPROMPTED:
            texts.append(_text_block(here, block))
    if len(calls) > TOOL_CALLS_MAX:
        raise invalid(where, f"at most {TOOL_CALLS_MAX} tool calls")
    message: dict[str, Any] = {"role": "assistant", "content": _joined(texts)}
    return {**message, "tool_calls": calls} if calls else message


def _blocks(where: str, content: Any, *, empty: bool = True) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(content, list) or len(content) > PARTS_MAX or not (content or empty):
        raise invalid(where, f"a string or a list of {0 if empty else 1} to {PARTS_MAX} content blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise invalid(f"{where}.{index}", "an object")
    return [(f"{where}.{index}", block) for index, block in enumerate(content)]


def _text_block(where: str, block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind != "text":
        shown = kind[:32] if isinstance(kind, str) else "of no type"
        raise InvalidRequest(
            f"`{where}` is {shown}: images, documents and server tools are not supported here.",
            code="unsupported_content",
            param=where,
        )
    return text(f"{where}.text", members(where, block, "text", passed=_BLOCK_MARKS).get("text"))


def _texts(where: str, value: Any, *, without: str = "") -> str:
    """The text of a string or of text blocks, but for blocks that begin with ``without``."""
    if isinstance(value, str):
        return text(where, value)
    written = [_text_block(here, block) for here, block in _blocks(where, value)]
    return _joined([part for part in written if not (without and part.startswith(without))])


def _joined(texts: list[str]) -> str:
    return "\n".join(part for part in texts if part)


def _tool_result(where: str, block: dict[str, Any]) -> dict[str, Any]:
    given = members(where, block, "tool_use_id", "content", passed=_BLOCK_MARKS)
    name = text(f"{where}.tool_use_id", given.get("tool_use_id"), chars_max=CALL_ID_CHARS_MAX, empty=False)
    return {"role": "tool", "content": _texts(f"{where}.content", given.get("content", "")), "tool_call_id": name}


def _tool_use(where: str, block: dict[str, Any]) -> dict[str, Any]:
    given = members(where, block, "id", "name", "input", passed=_BLOCK_MARKS)
    arguments = given.get("input")
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.input", "an object")
    return {
        "id": text(f"{where}.id", given.get("id"), chars_max=CALL_ID_CHARS_MAX, empty=False),
        "type": "function",
        "function": {
            "name": text(f"{where}.name", given.get("name"), chars_max=NAME_CHARS_MAX, empty=False),
            "arguments": text(f"{where}.input", json.dumps(arguments, ensure_ascii=False)),
        },
    }
