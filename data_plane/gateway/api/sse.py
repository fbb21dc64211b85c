"""Rewrites an engine's event stream for the caller and reads its token counts: our model name, only the requested
usage.

Nearly every event differs from the one before only between `"choices":` and `,"usage":`, so the rewriter cuts it there
and does not parse it. Any other event is parsed and rebuilt from known keys.
"""

import contextlib
import re
from dataclasses import replace
from typing import Any, Final

import msgspec

from data_plane.gateway.api.openai_request import UsageShown
from data_plane.gateway.api.openai_response import Usage
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts, reported_number, reported_sequences

DONE: Final = b"data: [DONE]\n\n"
_USAGE_MARK: Final = b',"usage":{'
# pydantic writes UsageInfo in this order (vLLM 0.32, entrypoints/serve/engine/protocol.py); null details may follow.
_USAGE_TAIL: Final = re.compile(
    rb',"usage":\{"prompt_tokens":(\d{1,12}),"total_tokens":\d+,"completion_tokens":(\d{1,12})(?:,"[a-z_]+":null)*\}\}'
)
_ABORTED: Final = b'"finish_reason":"abort"'
_FINISHED: Final = re.compile(rb'"finish_reason":"([a-z_]{1,32})"')
_LOAD_MARK: Final = b": tenora-load "
_ABORTED_MARK: Final = b": tenora-aborted "
_CACHED_MARK: Final = b": tenora-cached-tokens "
_KV_MARK: Final = b": tenora-kv-page-ms "
_SEQUENCES_MARK: Final = b": tenora-sequences "
_load_decoder: Final = msgspec.json.Decoder(AdapterLoad)
_USAGE_KEYS: Final = (
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)


MALFORMED_EVENT: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""Errors that reading a malformed event may raise."""


class StreamBroken(Exception):
    """The replica's stream is broken: an error event, an aborted choice, or a malformed event. ``before`` holds the
    rewritten events that arrived before it in the same chunk; they were counted and belong to the caller.
    """

    def __init__(self, why: str, before: bytes = b"") -> None:
        super().__init__(why)
        self.before = before


class Rewriter:
    """Rewrites one stream. ``feed`` takes bytes as they arrive and returns the bytes for the caller."""

    def __init__(
        self,
        *,
        response_id: str,
        engine_name: str,
        shown_name: str,
        usage_shown: UsageShown,
        sequences: int,
        event_max_bytes: int,
        service_tier: str | None = None,
    ) -> None:
        self._response_id = response_id
        self._engine_name = engine_name
        self._usage_shown = usage_shown
        self._sequences = sequences
        self._event_max_bytes = event_max_bytes
        self._shown: dict[str, Any] = {"model": shown_name}
        if service_tier is not None:
            self._shown["service_tier"] = service_tier
        self._pending = b""
        self._head = b""  # the common start of this stream's events, up to their choices
        self._head_out = b""
        self._tail_out = b',"usage":null}\n\n' if usage_shown == "final" else b"}\n\n"
        self._last_usage: re.Match[bytes] | None = None
        self._last_choices = b""  # of the last event that was not parsed
        self._finish_reason: str | None = None
        self._cached_tokens: int | None = None  # None until the engine reports it
        self._counted: dict[int, tuple[int, int]] = {}  # by choice index: prompt and output tokens
        self._reported: TokenCounts | None = None  # by the middleware, at the end of several sequences
        self._last_event: dict[str, Any] | None = None  # the final usage of several sequences, which waits for it
        self.load: AdapterLoad | None = None  # as the engine's middleware reported it
        self.aborted_report: bytes | None = None  # its report on aborted prefills, not decoded
        self.kv_page_ms: int | None = None  # its last report of KV page-time
        self.final = False  # the engine's final usage has arrived
        self.done = False
        self.aborting = False  # the gateway aborted the request, so an aborted choice is expected

    def feed(self, data: bytes) -> bytes:
        """Rewrite the complete events. Raises StreamBroken."""
        *events, self._pending = (self._pending + data if self._pending else data).split(b"\n\n")
        out: list[bytes] = []
        try:
            for event in events:
                out.append(self._rewrite(event))  # noqa: PERF401 - events before a bad one are kept
        except StreamBroken as broken:
            broken.before = b"".join(out)
            raise
        except MALFORMED_EVENT as error:
            raise StreamBroken("malformed event", b"".join(out)) from error
        if len(self._pending) > self._event_max_bytes:
            raise StreamBroken(f"an event is larger than {self._event_max_bytes} bytes", b"".join(out))
        return out[0] if len(out) == 1 else b"".join(out)

    def counts(self) -> TokenCounts:
        """Tokens so far, by the engine's running counts."""
        if self._last_usage is not None:
            self._counted = {0: (int(self._last_usage[1]), int(self._last_usage[2]))}
            self._last_usage = None
        if self._reported is not None:
            return replace(self._reported, kv_page_ms=self.kv_page_ms)
        known = self.final or self._cached_tokens is not None
        sequences = [lengths for lengths in self._counted.values() if lengths[1] > 0]
        return TokenCounts(sequences, self._cached_tokens or 0, cached_known=known, kv_page_ms=self.kv_page_ms)

    @property
    def finish_reason(self) -> str | None:
        """Why the sequence that ended last ended, as the engine says; None before. Text cannot look like it: JSON has a
        backslash before a quote in a text.
        """
        found = _FINISHED.search(self._last_choices)
        return self._finish_reason if found is None else found[1].decode()

    def _rewrite(self, event: bytes) -> bytes:
        if self._head and event.startswith(self._head) and (at := event.rfind(_USAGE_MARK)) > 0:
            usage = _USAGE_TAIL.fullmatch(event, at)
            choices = event[len(self._head) : at]
            if usage is not None and choices != b"[]" and _ABORTED not in choices:
                self._last_usage, self._last_choices = usage, choices
                if self._usage_shown == "continuous":
                    return self._head_out + event[len(self._head) :] + b"\n\n"
                return self._head_out + choices + self._tail_out
        return self._rebuild(event)

    def _rebuild(self, event: bytes) -> bytes:
        """The slow path: parse, check, and write from known keys."""
        while event.startswith(b":"):
            comment, _, event = event.partition(b"\n")
            self._read_comment(comment)
        if not event:
            return b""
        if event == b"data: [DONE]":
            self.done = True  # the end of the caller's stream is written after settlement
            return b"" if self._last_event is None else self._written(self._last_event)
        chunk = _decode(event)
        choices = chunk.get("choices")
        if "error" in chunk or not isinstance(choices, list):
            raise StreamBroken("the engine reported an error in its stream")
        self._record_usage(chunk.get("usage"), choices)
        if not choices:
            self.final = True
            if self._usage_shown == "none":
                return b""
            if self._sequences > 1:
                self._last_event = chunk
                return b""
        elif not self.aborting and any(choice.get("finish_reason") == "abort" for choice in choices):
            raise StreamBroken("the engine aborted the request")
        if (found := _FINISHED.search(event)) is not None:
            self._finish_reason, self._last_choices = found[1].decode(), b""
        if not self._head and self._sequences == 1:
            self._learn_head(event, chunk)
        return self._written(chunk)

    def _written(self, chunk: dict[str, Any]) -> bytes:
        """An event as the caller sees it."""
        choices = chunk["choices"]
        rebuilt = {
            "id": self._response_id,
            "object": chunk.get("object"),
            "created": chunk.get("created"),
            **self._shown,
            "choices": choices,
        }
        if self._usage_shown == "continuous" or (self._usage_shown == "final" and not choices):
            rebuilt["usage"] = self._shown_usage(chunk.get("usage"), final=not choices)
        elif self._usage_shown == "final":
            rebuilt["usage"] = None
        return b"data: " + msgspec.json.encode(rebuilt) + b"\n\n"

    def _read_comment(self, comment: bytes) -> None:
        """A comment is a keepalive or a report of the engine's middleware. Callers see neither."""
        if comment.startswith(_KV_MARK):
            reported = reported_number(comment[len(_KV_MARK) :])
            self.kv_page_ms = self.kv_page_ms if reported is None else reported
        elif comment.startswith(_CACHED_MARK):
            self._cached_tokens = reported_number(comment[len(_CACHED_MARK) :])
        elif comment.startswith(_LOAD_MARK):
            with contextlib.suppress(msgspec.MsgspecError):  # informational only: nothing is billed by it
                self.load = _load_decoder.decode(comment[len(_LOAD_MARK) :])
        elif comment.startswith(_ABORTED_MARK):
            self.aborted_report = comment[len(_ABORTED_MARK) :]
        elif comment.startswith(_SEQUENCES_MARK) and self._sequences > 1:
            self._reported = reported_sequences(comment[len(_SEQUENCES_MARK) :])

    def _learn_head(self, event: bytes, chunk: dict[str, Any]) -> None:
        """Remember how this stream's events begin, if this event begins exactly as the gateway would write it."""
        start = {"id": self._response_id, "object": chunk.get("object"), "created": chunk.get("created")}
        head = b"data: " + msgspec.json.encode({**start, "model": self._engine_name})[:-1] + b',"choices":'
        if event.startswith(head):
            self._head = head
            self._head_out = b"data: " + msgspec.json.encode({**start, **self._shown})[:-1] + b',"choices":'

    def _record_usage(self, usage: Any, choices: list[Any]) -> None:
        if usage is None and choices:
            return
        counted = msgspec.convert(usage, Usage)  # if this raises, the counts so far remain
        index = int(choices[0].get("index", 0)) if choices and self._sequences > 1 else 0
        completion = counted.completion_tokens
        self._last_usage = None
        if choices or self._sequences == 1:
            self._counted[index] = counted.prompt_tokens, completion  # running counts are per choice
        elif sum([output for _, output in self._counted.values()]) != completion:
            raise StreamBroken("the engine's running counts and its final count differ")
        if counted.prompt_tokens_details is not None:
            self._cached_tokens = int(counted.prompt_tokens_details.get("cached_tokens") or 0)

    def _shown_usage(self, usage: Any, *, final: bool) -> dict[str, Any] | None:
        if usage is None:
            return None
        shown = {key: usage[key] for key in _USAGE_KEYS if usage.get(key) is not None}
        if final or self._cached_tokens is not None:
            shown["prompt_tokens_details"] = {"cached_tokens": self._cached_tokens or 0}
        if final and self._sequences > 1:
            counts = self.counts()
            shown |= {"prompt_tokens": counts.input_tokens, "total_tokens": counts.total_tokens}
            shown["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
        return shown


def _decode(event: bytes) -> dict[str, Any]:
    if not event.startswith(b"data: "):
        raise StreamBroken("a line that is no event")
    try:
        chunk = msgspec.json.decode(event[6:])
    except msgspec.DecodeError:
        raise StreamBroken("an event that is not JSON") from None
    if not isinstance(chunk, dict):
        raise StreamBroken("an event that is not an object")
    return chunk
