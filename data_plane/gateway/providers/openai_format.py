"""OpenAI's chat completions, as OpenAI and servers that are compatible with it speak them
(https://platform.openai.com/docs/api-reference/chat).
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.providers.wire_format import WireFormat, reason_of, tool_call

_FIELDS: Final = frozenset(
    {"frequency_penalty", "logprobs", "parallel_tool_calls", "presence_penalty", "response_format", "seed", "stop",
     "temperature", "tool_choice", "top_logprobs", "top_p"}
)  # fmt: skip
_LOGPROB_MAX: Final = 100_000  # some servers write -9999 for a token that cannot be


class OpenAIFormat(WireFormat):
    """OpenAI's own API."""

    path = "/chat/completions"
    taken: ClassVar[frozenset[str]] = _FIELDS
    max_tokens_name: ClassVar[str] = "max_completion_tokens"  # models that reason take no other name

    @staticmethod
    def headers(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    @classmethod
    def body(cls, call: Call, *, model: str, max_tokens: int) -> dict[str, Any]:
        body = {name: value for name, value in call.fields.items() if name in cls.taken}
        body |= {"model": model, "messages": call.messages, cls.max_tokens_name: max_tokens}
        if call.tools is None:
            body.pop("parallel_tool_calls", None)  # OpenAI refuses it without tools
        else:
            body["tools"] = call.tools
        return body | {"stream": True, "stream_options": {"include_usage": True}}

    def _event(self, event: bytes) -> Iterator[bytes]:
        if event == b"[DONE]":
            yield self._ending()
            return
        chunk = msgspec.json.decode(event, type=dict[str, Any])
        choices = chunk.get("choices")
        if chunk.get("error") or not isinstance(choices, list):
            raise StreamBroken("the provider reported an error in its stream")
        for choice in choices:
            if choice.get("index", 0) == 0:
                delta = self._said(choice.get("delta") or {})
                yield self._choice(delta, reason_of(choice.get("finish_reason")), **_more(choice))
        self._report(chunk.get("usage"))

    def _said(self, given: dict[str, Any]) -> dict[str, Any]:
        """The parts of a message, or of a piece of one, that an engine's answer can have."""
        said: dict[str, Any] = {}
        if given.get("role") is not None:
            said["role"] = "assistant"
        for name in ("content", "refusal"):
            if given.get(name) is not None:
                said["content"] = said.get("content", "") + self._text(given[name])
        for name in ("reasoning", "reasoning_content"):
            if given.get(name) is not None and "reasoning" not in said:
                said["reasoning"] = self._text(given[name])
        if calls := given.get("tool_calls"):
            said["tool_calls"] = [self._tool_call(call) for call in calls]
        return said

    def _tool_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments = self._text(function.get("arguments") or "")
        index = {} if call.get("index") is None else {"index": int(call["index"])}
        if call.get("id") is None:  # a further piece of a call
            return {**index, "function": {"arguments": arguments}}
        return tool_call(call["id"], self._text(function.get("name") or ""), arguments, **index)

    def _report(self, usage: Any) -> None:
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self._meter.report(prompt=usage.get("prompt_tokens"), cached=cached, output=usage.get("completion_tokens"))


class CompatibleFormat(OpenAIFormat):
    """Servers that are compatible with OpenAI's API, such as vLLM, llm-d and Ray Serve LLM."""

    taken = _FIELDS | {"min_p", "repetition_penalty", "top_k"}
    max_tokens_name = "max_tokens"


def _more(choice: dict[str, Any]) -> dict[str, Any]:
    """What a choice may have beside its text."""
    logprobs, stopped_by = choice.get("logprobs"), choice.get("stop_reason")
    found: dict[str, Any] = {}
    if isinstance(logprobs, dict):
        content = logprobs.get("content")
        found["logprobs"] = {"content": content if isinstance(content, list) and all(map(_is_token, content)) else None}
    if isinstance(stopped_by, str):
        found["stop_reason"] = stopped_by
    return found


def _is_token(given: Any) -> bool:
    """Whether this is a token with its log-probability, as a cascade reads it."""
    logprob = given.get("logprob") if isinstance(given, dict) else None
    return isinstance(logprob, int | float) and -_LOGPROB_MAX <= logprob <= _LOGPROB_MAX
