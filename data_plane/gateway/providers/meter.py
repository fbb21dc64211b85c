"""Counts the tokens of one request to an outside provider: the provider's own usage where that can be true, and
otherwise the gateway's estimate. Pure.
"""

from typing import Any, Final

import msgspec

from core.contracts.usage import AbortedPrefill
from data_plane.gateway.api.token_counts import TokenCounts

_BYTES_PER_TOKEN: Final = 4
_PROMPT_TIMES_MAX: Final = 4
_PROMPT_MORE_MAX: Final = 1024
"""A provider's prompt may be so many times the gateway's count, and so much more: tokenizers differ, and a provider
adds words of its own to tools. A usage above that is not believed.
"""


class ReportedUsage(msgspec.Struct, frozen=True):
    """A provider's usage that can be true. The cached tokens are a part of the prompt's."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class ProviderMeter:
    """``prompt_tokens`` is the gateway's count without its margin, ``output_max`` the ceiling of the request.
    ``finished`` says that the answer has come to its end.
    """

    def __init__(self, *, prompt_tokens: int, output_max: int) -> None:
        self.reported: ReportedUsage | None = None
        self.finished = False
        self._counted = max(1, prompt_tokens)
        self._prompt_max = prompt_tokens * _PROMPT_TIMES_MAX + _PROMPT_MORE_MAX
        self._output_max = output_max
        self._pieces = 0
        self._bytes = 0

    def text(self, piece: str) -> None:
        """Count a piece of generated text. A usage that was reported before it is not the whole."""
        if piece:
            self.reported = None
            self._pieces += 1
            self._bytes += len(piece.encode())

    def report(self, *, prompt: Any, cached: Any, output: Any) -> None:
        """Take over the usage that a provider reports, if it can be true: whole numbers, none below zero, a prompt near
        the gateway's count, not more output than was allowed, and some output where text has arrived.
        """
        cached = 0 if cached is None else cached
        if not all(type(value) is int for value in (prompt, cached, output)):
            return
        if 0 < prompt <= self._prompt_max and 0 <= cached <= prompt and self._is_possible(output):
            self.reported = ReportedUsage(prompt, cached, output)

    def _is_possible(self, output: int) -> bool:
        return (1 if self._pieces else 0) <= output <= self._output_max

    @property
    def usage(self) -> ReportedUsage:
        """The usage so far. An estimate has a token for each piece of text, or for each four bytes if that is more."""
        if self.reported is not None:
            return self.reported
        estimate = max(self._pieces, -(-self._bytes // _BYTES_PER_TOKEN))
        return ReportedUsage(self._counted, 0, min(estimate, self._output_max))

    def counts(self) -> TokenCounts:
        """The usage as it is settled. No KV page of ours was held. An answer that ended without text has its prompt."""
        usage, known = self.usage, self.reported is not None
        counts = TokenCounts(cached_known=known, kv_page_ms=0)
        if usage.output_tokens:
            counts.sequences = [(usage.prompt_tokens, usage.output_tokens)]
            counts.cached_tokens = usage.cached_tokens
        elif self.finished:
            counts.aborted = (AbortedPrefill(usage.prompt_tokens, usage.cached_tokens),)
        counts.counted_here = not known and counts.input_tokens > 0
        return counts

    def counts_with_prompt(self) -> TokenCounts:
        """The usage of an answer that has not ended: at least the prompt, which the provider had."""
        counts = self.counts()
        if not counts.sequences and not counts.aborted:
            usage = self.usage
            counts.aborted = (AbortedPrefill(usage.prompt_tokens, usage.cached_tokens),)
            counts.counted_here = self.reported is None
        return counts
