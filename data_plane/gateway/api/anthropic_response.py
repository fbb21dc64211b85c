"""OpenAI's answers, whole and streamed, as Anthropic's messages and events. Pure; counts are passed on, never made."""

from typing import Any, Final

import msgspec

_STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
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
    reason, sequence = _stop(choice)
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
                self._stop = _stop(choice)

    def _tool(self, call: dict[str, Any], out: list[bytes]) -> None:
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


def _stop(choice: dict[str, Any]) -> tuple[str | None, str | None]:
    """Why it ended, and the stop sequence where that was one: the engine names it beside its reason."""
    sequence = choice.get("stop_reason")
    if choice.get("finish_reason") == "stop" and isinstance(sequence, str):
        return "stop_sequence", sequence
    return _STOP_REASONS.get(choice.get("finish_reason") or "", "end_turn"), None


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
    """A call's arguments; empty where the answer was cut before they were whole, which its stop reason says."""
    try:
        found = _decode(arguments)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
