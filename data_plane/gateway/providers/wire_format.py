"""What providers' wire formats share: a request that this gateway has checked becomes a provider's body, and its answer
becomes what an engine would have answered, so that the rest of the gateway reads one form.

Every answer is rebuilt from known keys. Pure: nothing is sent here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import msgspec

from core import clock
from core.errors import InvalidRequest
from data_plane.gateway.api.fields import invalid
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.sse import DONE, MALFORMED_EVENT, StreamBroken
from data_plane.gateway.providers.meter import ProviderMeter

_encode: Final = msgspec.json.encode
_REASON_CHARS_MAX: Final = 32
_ASKS_NOTHING: Final[dict[str, Any]] = {
    "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "min_p": 0, "presence_penalty": 0,
    "repetition_penalty": 1, "response_format": {"type": "text"}, "top_k": -1,
}  # fmt: skip
"""Values by which a field asks for nothing, so that a provider without the field does the same."""


class EventStream:
    """Splits a stream of server-sent events into their data
    (https://html.spec.whatwg.org/multipage/server-sent-events.html). Comments, names and ids of events are left out:
    the data says all that is needed.
    """

    def __init__(self, *, event_max_bytes: int) -> None:
        self._event_max_bytes = event_max_bytes
        self._partial = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises StreamBroken for an event that is too large."""
        *lines, self._partial = (self._partial + received).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
                self._data_bytes += len(text)
            elif not text and self._data:
                events.append(self._taken())
        if len(self._partial) + self._data_bytes > self._event_max_bytes:
            raise StreamBroken(f"an event is larger than {self._event_max_bytes} bytes")
        return events

    def rest(self) -> list[bytes]:
        """The data of a last event without the empty line after it, with which some servers end."""
        events = self.feed(b"\n")
        return [*events, self._taken()] if self._data else events

    def _taken(self) -> bytes:
        data, self._data, self._data_bytes = b"\n".join(self._data), [], 0
        return data


class WireFormat(ABC):
    """One answer in a provider's format. ``done`` says that its end has arrived."""

    path: ClassVar[str]
    """Where requests go, behind the provider's URL."""

    taken: ClassVar[frozenset[str]]
    """The fields that its providers take, of those that ``Call.fields`` may have."""

    def __init__(
        self, meter: ProviderMeter, *, response_id: str, engine_name: str, event_max_bytes: int, bytes_max: int
    ) -> None:
        self.done = False
        self._meter = meter
        self._head = {
            "id": response_id, "object": "chat.completion.chunk", "created": clock.now_ms() // 1000,
            "model": engine_name,
        }  # fmt: skip
        self._events = EventStream(event_max_bytes=event_max_bytes)
        self._bytes_left = bytes_max
        self._has_reason = False

    @staticmethod
    @abstractmethod
    def headers(key: str) -> dict[str, str]:
        """The headers that show the API key."""

    @classmethod
    @abstractmethod
    def body(cls, call: Call, *, model: str, max_tokens: int) -> dict[str, Any]:
        """The body for the provider."""

    @classmethod
    def require_taken(cls, call: Call) -> None:
        """Refuse what the provider would refuse or ignore. Raises InvalidRequest that names the field."""
        if call.kind == "tokenize":
            return
        if call.kind != "chat":
            raise InvalidRequest(
                f"`{call.model}` takes chats only; send `messages` to /v1/chat/completions.",
                code="model_takes_chats_only",
                param="model",
            )
        if call.n > 1:
            raise invalid("n", "1 for this model")
        for name, value in call.fields.items():
            if name not in cls.taken and (name not in _ASKS_NOTHING or value != _ASKS_NOTHING[name]):
                raise InvalidRequest(
                    f"`{name}` is not taken by the provider of this model; remove it.",
                    code="unsupported_by_provider",
                    param=name,
                )

    def feed(self, received: bytes) -> bytes:
        """The events of an engine that these bytes amount to. Raises StreamBroken."""
        self._bytes_left -= len(received)
        if self._bytes_left < 0:
            raise StreamBroken("the provider's answer is too large")
        return self._translated(self._events.feed, received)

    def end(self) -> bytes:
        """The last events, now that the provider has closed its stream. Raises StreamBroken unless the answer is
        complete.
        """
        out = self._translated(lambda _nothing: self._events.rest(), b"")
        if not self.done and self._has_reason:  # some servers send no mark of the end
            out += self._ending()
        if not self.done:
            raise StreamBroken("the provider's stream ended before its answer", out)
        return out

    @abstractmethod
    def _event(self, event: bytes) -> Iterator[bytes]:
        """An engine's events for one event of the provider. Raises StreamBroken or one of MALFORMED_EVENT."""

    def _translated(self, split: Callable[[bytes], list[bytes]], received: bytes) -> bytes:
        out: list[bytes] = []
        try:
            for event in split(received):
                if self.done:
                    break
                for each in self._event(event):
                    out.append(each)  # noqa: PERF402 - events before a bad one are kept
        except StreamBroken as broken:
            broken.before = b"".join(out) + broken.before
            raise
        except MALFORMED_EVENT as error:
            raise StreamBroken("malformed event of a provider", b"".join(out)) from error
        return b"".join(out)

    def _choice(self, delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        """One event with a part of the answer."""
        self._has_reason = self._has_reason or reason is not None
        choice = {"index": 0, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": reason, **more}
        return self._chunk([choice], self._usage(running=True))

    def _ending(self) -> bytes:
        """The final usage, and the mark of the end."""
        self.done = self._meter.finished = True
        return self._chunk([], self._usage()) + DONE

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        return b"data: " + _encode({**self._head, "choices": choices, "usage": usage}) + b"\n\n"

    def _usage(self, *, running: bool = False) -> dict[str, Any]:
        """The usage in the order in which an engine writes it."""
        usage = self._meter.usage
        shown: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "completion_tokens": usage.output_tokens,
        }
        return shown if running else shown | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}

    def _text(self, value: Any) -> str:
        """A piece of the answer, which is counted. Raises TypeError for what is no text."""
        if not isinstance(value, str):
            raise TypeError("no text")
        self._meter.text(value)
        return value


def reason_of(value: Any) -> str | None:
    """Why an answer ended, as an identifier; ``stop`` for anything else."""
    if value is None:
        return None
    return value if isinstance(value, str) and value.isidentifier() and len(value) <= _REASON_CHARS_MAX else "stop"


def tool_call(given_id: Any, name: str, arguments: str, **more: int) -> dict[str, Any]:
    """A tool call as an engine writes it."""
    return {**more, "id": str(given_id), "type": "function", "function": {"name": name, "arguments": arguments}}
