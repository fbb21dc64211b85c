"""What an engine reports about one request: the tokens it counted and how it loaded the adapter. Readers of responses
fill these values; how they become a bill is settlement/usage_event.py.
"""

from dataclasses import dataclass, field

import msgspec

from core.contracts.replicas import Tier


@dataclass(slots=True)
class TokenCounts:
    """Tokens as an engine counted them. ``outputs`` are the tokens of each sequence that produced any.

    An engine counts a sequence's prompt at its first token. So a sequence without output counts nothing, and ``n``
    sequences count the prompt ``n`` times; Tenora meters the same. For a stream, an engine reports the number of cached
    prompt tokens only at the end.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    outputs: list[int] = field(default_factory=list)
    cached_known: bool = True

    @property
    def input_tokens(self) -> int:
        return self.prompt_tokens * len(self.outputs)

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
