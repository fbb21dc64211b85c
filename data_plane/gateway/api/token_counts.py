"""What an engine reports about one request: the tokens it counted and how it loaded the adapter. Readers of responses
fill these values; how they become a bill is settlement/usage_event.py.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from core.contracts.replicas import Tier
from core.contracts.usage import AbortedPrefill

_prefills_decoder: Final = msgspec.json.Decoder(list[AbortedPrefill])
_DIGITS_MAX: Final = 15


@dataclass(slots=True)
class TokenCounts:
    """Tokens as an engine counted them. ``outputs`` are the tokens of each sequence that produced any.

    An engine counts a sequence's prompt at its first token, so ``n`` sequences count the prompt ``n`` times; Tenora
    meters the same. ``aborted`` are the sequences that were aborted before: their prefills are metered too, although
    the engine does not count them. ``cached_known`` is false until the engine has reported the cached tokens.
    ``kv_page_ms`` are the KV page-milliseconds that the engine has measured; None where it has reported none.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    outputs: list[int] = field(default_factory=list)
    cached_known: bool = True
    aborted: tuple[AbortedPrefill, ...] = ()
    kv_page_ms: int | None = None

    @property
    def input_tokens(self) -> int:
        return self.prompt_tokens * len(self.outputs) + self.aborted_prefill_tokens

    @property
    def aborted_prefill_tokens(self) -> int:
        return sum(prefill.computed_tokens for prefill in self.aborted)

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class AdapterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine loaded the adapter of one request: the tier where the adapter was when the request arrived, how
    long the request waited for it, and how long loading delayed the step that all running requests share.
    """

    tier: Tier
    load_ms: int
    stall_ms: int


def reported_number(report: bytes | str | None) -> int | None:
    """The number in a report of the engine's middleware; None without a valid report."""
    if report is None or len(report) > _DIGITS_MAX or not (report.isascii() and report.isdigit()):
        return None
    return int(report)


def reported_prefills(report: bytes | str | None, *, prompt_tokens: int) -> list[AbortedPrefill] | None:
    """The prefills in a report of the engine's middleware, each at most the prompt; None without a valid report."""
    try:
        prefills = None if report is None else _prefills_decoder.decode(report)
    except msgspec.MsgspecError:
        return None
    if prefills is None:
        return None
    computed = [(min(prefill.computed_tokens, prompt_tokens), prefill.cached_tokens) for prefill in prefills]
    return [AbortedPrefill(tokens, min(cached, tokens)) for tokens, cached in computed if tokens > 0]
