"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from data_plane.gateway.api.fields import invalid
from data_plane.gateway.api.openai_messages import parsed_arguments
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.providers.wire_format import WireFormat, tool_call

_VERSION: Final = "2023-06-01"
_REASONS: Final = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "stop",
    "refusal": "content_filter",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}
_CONTINUED: Final = frozenset({"add_generation_prompt", "continue_final_message"})
"""An answer to messages whose last one is the assistant's goes on with it, as these fields ask engines to do."""


class AnthropicFormat(WireFormat):
    """Anthropic's API. The output of its usage is the whole so far, and the prompt's parts are counted apart."""

    path = "/messages"
    taken: ClassVar[frozenset[str]] = _CONTINUED | {
        "parallel_tool_calls", "stop", "temperature", "tool_choice", "top_k", "top_p",
    }  # fmt: skip

    _begun_with: dict[str, Any] | None = None  # the prompt's usage, which the first event has
    _tools = -1  # index of the last tool's call
    _has_arguments = True

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": _VERSION}

    @classmethod
    def require_taken(cls, call: Call) -> None:
        super().require_taken(call)
        if call.fields.get("temperature", 0) > 1:
            raise invalid("temperature", "a number from 0 to 1 for this model")

    @classmethod
    def body(cls, call: Call, *, model: str, max_tokens: int) -> dict[str, Any]:
        messages = call.messages or []
        turns = list(_turns(messages))
        body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": turns, "stream": True}
        if system := "\n\n".join(each["content"] for each in messages if each["role"] in ("system", "developer")):
            body["system"] = system
        for name in ("temperature", "top_p", "top_k"):
            if name in call.fields:
                body[name] = call.fields[name]
        if stop := call.fields.get("stop"):
            body["stop_sequences"] = stop
        if call.tools is not None:
            body["tools"] = [_tool(tool["function"]) for tool in call.tools]
            choice = _tool_choice(call.fields.get("tool_choice", "auto"))
            if not call.fields.get("parallel_tool_calls", True) and choice["type"] != "none":
                choice["disable_parallel_tool_use"] = True
            body["tool_choice"] = choice
        return body

    def _event(self, event: bytes) -> Iterator[bytes]:
        given = msgspec.json.decode(event, type=dict[str, Any])
        match given.get("type"):
            case "error":
                raise StreamBroken("the provider reported an error in its stream")
            case "message_start":
                self._begun_with = _counts(given["message"].get("usage"), "output_tokens")
                yield self._choice({"role": "assistant", "content": ""})
            case "content_block_start":
                yield from self._begun(given["content_block"])
            case "content_block_delta":
                yield from self._piece(given["delta"])
            case "content_block_stop" if not self._has_arguments:
                self._has_arguments = True
                yield self._arguments("{}")
            case "message_delta":
                self._report({**(self._begun_with or {}), **_counts(given.get("usage"))})
                delta = given["delta"]
                reason = _REASONS.get(delta.get("stop_reason"), "stop")
                yield self._choice({}, reason, **_stopped_by(delta))
            case "message_stop":
                yield self._ending()

    def _begun(self, block: dict[str, Any]) -> Iterator[bytes]:
        if block["type"] == "tool_use":
            self._tools += 1
            self._has_arguments = False
            begun = tool_call(block["id"], self._text(block["name"]), "", index=self._tools)
            yield self._choice({"tool_calls": [begun]})

    def _piece(self, delta: dict[str, Any]) -> Iterator[bytes]:
        match delta["type"]:
            case "text_delta":
                yield self._choice({"content": self._text(delta["text"])})
            case "thinking_delta":
                yield self._choice({"reasoning": self._text(delta["thinking"])})
            case "input_json_delta" if delta["partial_json"]:
                self._has_arguments = True
                yield self._arguments(self._text(delta["partial_json"]))

    def _arguments(self, piece: str) -> bytes:
        return self._choice({"tool_calls": [{"index": self._tools, "function": {"arguments": piece}}]})

    def _report(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        cached = usage.get("cache_read_input_tokens") or 0
        parts = [usage.get("input_tokens"), usage.get("cache_creation_input_tokens") or 0, cached]
        if all(type(part) is int and part >= 0 for part in parts):
            self._meter.report(prompt=sum(parts), cached=cached, output=usage.get("output_tokens"))


def _turns(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The conversation without its system messages. Results of tools that follow each other are one turn of the user's,
    as the API wants them.
    """
    results: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            called = message["tool_call_id"]
            results.append({"type": "tool_result", "tool_use_id": called, "content": message["content"]})
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        if message["role"] == "user":
            yield {"role": "user", "content": message["content"]}
        elif message["role"] == "assistant":
            yield {"role": "assistant", "content": _said(message)}
    if results:
        yield {"role": "user", "content": results}


def _said(message: dict[str, Any]) -> str | list[dict[str, Any]]:
    calls: list[dict[str, Any]] = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": parsed_arguments(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    if not calls:
        return str(message["content"])
    text = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return [*text, *calls]


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    tool = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return tool | ({"description": function["description"]} if function.get("description") else {})


def _tool_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": {"auto": "auto", "none": "none", "required": "any"}[choice]}


def _counts(usage: Any, *without: str) -> dict[str, Any]:
    """What a usage has. That of the first event has the output so far, which is not the whole."""
    given = usage.items() if isinstance(usage, dict) else ()
    return {name: count for name, count in given if count is not None and name not in without}


def _stopped_by(given: dict[str, Any]) -> dict[str, Any]:
    sequence = given.get("stop_sequence")
    return {"stop_reason": sequence} if isinstance(sequence, str) else {}
