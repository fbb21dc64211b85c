"""What an engine reports about one request: the tokens it counted and how it loaded the adapter. Readers of responses
fill these values; how they become a bill is settlement/usage_event.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from core.contracts.replicas import Tier
from core.contracts.usage import AbortedPrefill, SequenceCounts

_prefills_decoder: Final = msgspec.json.Decoder(list[AbortedPrefill])
_sequences_decoder: Final = msgspec.json.Decoder(list[SequenceCounts])
_DIGITS_MAX: Final = 15


@dataclass(slots=True)
class TokenCounts:
    """Tokens as an engine counted them. ``sequences`` are those that produced any: the prompt and the output tokens of
    each.

    An engine counts a sequence's prompt at its first token, so ``n`` sequences count the prompt ``n`` times; Tenora
    meters the same. ``aborted`` are the sequences that were aborted before: their prefills are metered too, although
    the engine does not count them. ``cached_known`` is false until the engine has reported the cached tokens.
    ``kv_page_ms`` are the KV page-milliseconds that the engine has measured; None where it has reported none. Tokens
    ``counted_here`` are an estimate of the gateway's own, where an outside provider reported none.
    """

    sequences: list[tuple[int, int]] = field(default_factory=list)
    cached_tokens: int = 0
    cached_known: bool = True
    aborted: tuple[AbortedPrefill, ...] = ()
    kv_page_ms: int | None = None
    counted_here: bool = False

    @classmethod
    def of(cls, sequences: Iterable[SequenceCounts], *, output_min: int = 1) -> Self:
        """The counts of a request whose engine reported each of its sequences. A text of embeddings has no output."""
        started = [each for each in sequences if each.output_tokens >= output_min]
        return cls(
            [(each.prompt_tokens, each.output_tokens) for each in started], sum(each.cached_tokens for each in started)
        )

    @property
    def input_tokens(self) -> int:
        tokens = self.aborted_prefill_tokens
        for prompt, _ in self.sequences:
            tokens += prompt
        return tokens

    @property
    def aborted_prefill_tokens(self) -> int:
        return sum(prefill.computed_tokens for prefill in self.aborted)

    @property
    def output_tokens(self) -> int:
        tokens = 0
        for _, output in self.sequences:
            tokens += output
        return tokens

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


def reported_sequences(report: bytes | str | None, *, output_min: int = 1) -> TokenCounts | None:
    """The counts in a report of the engine's middleware on each of several sequences; None without a valid report."""
    try:
        return None if report is None else TokenCounts.of(_sequences_decoder.decode(report), output_min=output_min)
    except msgspec.MsgspecError:
        return None


def shared_out(prompts: tuple[int, ...], completion_tokens: int, cached_tokens: int) -> TokenCounts:
    """The counts of a request of which only the sum is known, spread evenly over its sequences."""
    each, more = divmod(completion_tokens, len(prompts))
    started = prompts if each else prompts[:more]
    return TokenCounts([(prompt, each + (place < more)) for place, prompt in enumerate(started)], cached_tokens)


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
