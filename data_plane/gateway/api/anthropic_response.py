"""OpenAI's answers as Anthropic's: messages, whole and as events, and models. Pure; counts are only passed on."""

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import pydantic_core

from data_plane.gateway.api.fields import invalid

_PAGE: Final = 20
_PAGE_MAX: Final = 1000
_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.decode


def message(answer: bytes) -> bytes:
    """A whole chat completion as a message."""
    given = _decode(answer)
    choice = given["choices"][0]
    reply = choice["message"]
    content: list[dict[str, Any]] = []
    if reply.get("content"):
        content.append({"type": "text", "text": reply["content"]})
    content += [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": _input(call["function"]["arguments"]),
        }
        for call in reply.get("tool_calls") or ()
    ]
    reason, sequence = _stop(choice, called=bool(reply.get("tool_calls")))
    return _encode(
        {
            "id": _id(given), "type": "message", "role": "assistant", "model": given["model"], "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": _usage(given["usage"]),
        }
    )  # fmt: skip


class Events:
    """One stream's events. Every call of ``feed`` takes whole events of a chat completion with running usage."""

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0  # begun
        self._called = False  # a tool
        self._open: tuple[str, int] | None = None  # kind and the engine's index of the block that is open
        self._stop: tuple[str | None, str | None] = (None, None)
        self._counted: dict[str, Any] = {}

    def feed(self, data: bytes) -> bytes:
        """The events that ``data`` amounts to."""
        out: list[bytes] = []
        for event in data.split(b"\n\n"):
            if event == b"data: [DONE]":
                self._end(out)
            elif event:
                self._chunk(_decode(event[6:]), out)
        return b"".join(out)

    def _chunk(self, chunk: dict[str, Any], out: list[bytes]) -> None:
        self._counted = chunk.get("usage") or self._counted
        if not self._started:
            self._started = True
            begun: dict[str, Any] = {
                "id": _id(chunk), "type": "message", "role": "assistant", "model": chunk["model"], "content": [],
                "stop_reason": None, "stop_sequence": None, "usage": {**_usage(self._counted), "output_tokens": 0},
            }  # fmt: skip
            out += (_event("message_start", message=begun), _event("ping"))
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            if delta.get("content"):
                self._enter("text", 0, {"type": "text", "text": ""}, out)
                self._delta({"type": "text_delta", "text": delta["content"]}, out)
            for call in delta.get("tool_calls") or ():
                self._tool(call, out)
            if choice.get("finish_reason"):
                self._stop = _stop(choice, called=self._called)

    def _tool(self, call: dict[str, Any], out: list[bytes]) -> None:
        self._called = True
        function = call.get("function") or {}
        begun: dict[str, Any] = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
        self._enter("tool", call.get("index", 0), begun, out)
        if function.get("arguments"):
            self._delta({"type": "input_json_delta", "partial_json": function["arguments"]}, out)

    def _enter(self, kind: str, index: int, begun: dict[str, Any], out: list[bytes]) -> None:
        """Be in this block: end the one that is open, where it is another."""
        if self._open == (kind, index):
            return
        self._leave(out)
        self._open = (kind, index)
        self._blocks += 1
        out.append(_event("content_block_start", index=self._blocks - 1, content_block=begun))

    def _leave(self, out: list[bytes]) -> None:
        if self._open is not None:
            out.append(_event("content_block_stop", index=self._blocks - 1))
            self._open = None

    def _delta(self, delta: dict[str, Any], out: list[bytes]) -> None:
        out.append(_event("content_block_delta", index=self._blocks - 1, delta=delta))

    def _end(self, out: list[bytes]) -> None:
        self._leave(out)
        reason, sequence = self._stop
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        out += (_event("message_delta", delta=ended, usage=_usage(self._counted)), _event("message_stop"))


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"


def _id(given: dict[str, Any]) -> str:
    return "msg_" + str(given["id"]).removeprefix("chatcmpl-")


def _stop(choice: dict[str, Any], *, called: bool) -> tuple[str, str | None]:
    """The stop reason, and the stop sequence that ended the answer. ``called`` says whether the answer calls a tool:
    the engine ends a forced call with "stop". A call that ``max_tokens`` or a stop sequence cut must not be run.
    """
    finish, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if finish == "length":
        return "max_tokens", None
    if finish == "stop" and isinstance(sequence, str):
        return "stop_sequence", sequence
    if finish == "content_filter":
        return "refusal", None
    return "tool_use" if called else "end_turn", None


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Anthropic counts the tokens read from the cache beside the input, OpenAI within it."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments. Of a call that was cut, what is complete: the same as SDKs read from the events."""
    try:
        found = pydantic_core.from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def model_info(entry: dict[str, Any]) -> dict[str, Any]:
    """A model of OpenAI's list."""
    return {
        "type": "model", "id": entry["id"], "display_name": entry["id"], "lifecycle": "active",
        "created_at": datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": entry["max_model_len"], "max_tokens": entry["limits"]["output_tokens"],
    }  # fmt: skip


def model_page(entries: list[dict[str, Any]], query: str) -> dict[str, Any]:
    """The part of a list of models for which a query string asks. Raises InvalidRequest."""
    asked = dict(parse_qsl(query))
    limit = asked.get("limit", str(_PAGE))
    if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= _PAGE_MAX:
        raise invalid("limit", f"a whole number from 1 to {_PAGE_MAX}")
    ids = [entry["id"] for entry in entries]
    if "before_id" in asked:
        end = _place(ids, "before_id", asked)
        first = max(0, end - int(limit))
        has_more = first > 0
    else:
        first = _place(ids, "after_id", asked) + 1 if "after_id" in asked else 0
        end = first + int(limit)
        has_more = end < len(ids)
    page = [model_info(entry) for entry in entries[first:end]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"data": page, "has_more": has_more, **ends}


def _place(ids: list[str], name: str, asked: dict[str, str]) -> int:
    if asked[name] not in ids:
        raise invalid(name, "the id of a model in the list")
    return ids.index(asked[name])
