"""An engine's non-streamed answer: its token counts, and the answer rebuilt from known keys for the caller. Pure.

What the gateway passes on unchanged is copied as JSON and never decoded: an answer of 8 MiB with log-probabilities
takes 12 ms of the event loop, where its objects would take 200.
"""

from typing import Any, Final

import msgspec

from core.contracts.usage import Tokens
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts, reported_sequences, shared_out

_ABSENT: Final = msgspec.Raw()
_NULL: Final = b"null"
_REASON_CHARS_MAX: Final = 32
_COPIED: Final = ("text", "logprobs", "stop_reason")
_COPIED_FROM_MESSAGE: Final = ("role", "content", "tool_calls", "reasoning")


class Usage(msgspec.Struct):
    prompt_tokens: Tokens
    completion_tokens: Tokens
    total_tokens: Tokens
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class EngineMessage(msgspec.Struct):
    """The message of a choice, as JSON."""

    role: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT


class EngineChoice(msgspec.Struct):
    """One choice. A chat has a ``message``, a completion ``text``."""

    index: int = 0
    message: EngineMessage | None = None
    text: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = _ABSENT


class EngineCompletion(msgspec.Struct):
    """The fields of an engine's answer that the gateway uses."""

    object: str
    created: int
    choices: list[EngineChoice]
    usage: Usage


_decoder: Final = msgspec.json.Decoder(EngineCompletion)
_load_decoder: Final = msgspec.json.Decoder(AdapterLoad)


def decode(raw: bytes) -> EngineCompletion:
    """Decode an answer. Raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(raw)


def load(header: str | None) -> AdapterLoad | None:
    """The adapter load from the header of a non-streamed answer; None when the header is missing or invalid."""
    try:
        return None if header is None else _load_decoder.decode(header)
    except msgspec.MsgspecError:
        return None


def counts(usage: Usage, *, prompts: tuple[int, ...], report: str | None = None) -> TokenCounts:
    """Tokens of an answer whose sequences have these ``prompts``. ``report`` is the middleware's on each of several
    sequences; without one, what the engine counted in all is spread evenly over them.
    """
    if len(prompts) > 1 and (reported := reported_sequences(report)) is not None:
        return reported
    cached = int((usage.prompt_tokens_details or {}).get("cached_tokens") or 0)
    return shared_out(prompts if len(prompts) > 1 else (usage.prompt_tokens,), usage.completion_tokens, cached)


def is_aborted(answer: EngineCompletion) -> bool:
    """Whether the engine aborted a choice."""
    return any(choice.finish_reason == "abort" for choice in answer.choices)


def finish_reason(answer: EngineCompletion) -> str | None:
    """Why the last choice ended, as the engine says; None where that is no identifier."""
    reason = answer.choices[-1].finish_reason if answer.choices else None
    return reason if reason is not None and reason.isidentifier() and len(reason) <= _REASON_CHARS_MAX else None


def for_caller(
    answer: EngineCompletion,
    answered: TokenCounts,
    *,
    response_id: str,
    shown_name: str,
    service_tier: str | None = None,
) -> bytes:
    """The answer with our id, the caller's name for the model, and the tier if one is given. Its usage is the metered
    one.
    """
    usage: dict[str, Any] = {
        "prompt_tokens": answered.input_tokens,
        "completion_tokens": answered.output_tokens,
        "total_tokens": answered.total_tokens,
        "prompt_tokens_details": {"cached_tokens": answered.cached_tokens},
    }
    return msgspec.json.encode(
        {
            "id": response_id, "object": answer.object, "created": answer.created, "model": shown_name,
            "choices": [_shown(choice) for choice in answer.choices], "usage": usage,
            **({} if service_tier is None else {"service_tier": service_tier}),
        }
    )  # fmt: skip


def _is_null(value: msgspec.Raw) -> bool:
    return len(value) == len(_NULL) and bytes(value) == _NULL


def _shown(choice: EngineChoice) -> dict[str, Any]:
    shown: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish_reason}
    if (message := choice.message) is not None:
        given = {key: getattr(message, key) for key in _COPIED_FROM_MESSAGE}
        kept = {key: value for key, value in given.items() if len(value) and not _is_null(value)}
        shown["message"] = {"content": None, **kept}
    copied = {key: getattr(choice, key) for key in _COPIED}
    return shown | {key: value for key, value in copied.items() if len(value)}
