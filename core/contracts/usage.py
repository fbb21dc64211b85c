"""The usage event that a gateway writes for billing about each request. How it is priced is not here.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Annotated, Final, Literal

import msgspec

from core.contracts.grants import ServiceClass, ServiceTier
from core.contracts.replicas import Tier

Outcome = Literal["done", "client_gone", "replica_gone", "timeout", "gateway_gone", "yielded"]
"""How a request ended. A ``yielded`` event has what an engine computed at the platform's cost: for a batch request that
then gave way to better work and ran again, or for an answer of a cascade that was replaced.
"""

SEQUENCES_MAX: Final = 32
"""Sequences of one request, at most: its prompts times ``n``. LangChain sends up to 20 prompts in a completion."""

INPUTS_MAX: Final = 256
"""Texts of one request for embeddings, at most."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**12)]

YIELDED: Final = ":yielded"
"""In the id of an event of outcome ``yielded``, after that of its request and before a number."""

REST: Final = ":rest"
"""Suffix of the id of usage beyond a billed estimate. Such an event is a remainder, not a separate request."""


class AbortedPrefill(msgspec.Struct, frozen=True, array_like=True):
    """The prefill of one sequence that was aborted before its first token: prompt tokens computed, and how many of them
    came from the prefix cache. An engine's middleware reports it to the gateway.
    """

    computed_tokens: Annotated[int, msgspec.Meta(ge=0)]
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)]


class SequenceCounts(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of one sequence that has produced any, as its engine counts them. An engine's middleware reports those
    of a request with several sequences to the gateway.
    """

    prompt_tokens: Tokens
    cached_tokens: Tokens
    output_tokens: Tokens


class GenerationProgress(msgspec.Struct, frozen=True):
    """What an engine has generated so far for a request whose answer comes in one piece: the counts of each sequence
    that has produced a token, and its KV page-milliseconds, None where the engine has not measured them. An engine's
    middleware reports it to the gateway.
    """

    sequences: list[SequenceCounts]
    kv_page_ms: int | None = None


class TokenCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What an outside provider charges the platform for one token, in nanodollars."""

    input_nanos: int
    cached_input_nanos: int
    output_nanos: int

    def nanos(self, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """What so many tokens cost. The cached ones are a part of the input."""
        uncached = input_tokens - cached_tokens
        return uncached * self.input_nanos + cached_tokens * self.cached_input_nanos + output_tokens * self.output_nanos


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one request, as the engine counted it. Two events with the same request id are one charge.

    ``adapter_tier`` is the tier of its adapter on arrival (None for a base model; ``store`` only if the request itself
    began the download), ``adapter_load_ms`` how long the request waited for the adapter, ``stall_ms`` how long the load
    delayed the step of all running requests.
    An ``estimated`` event is the last checkpoint of a request whose gateway died: a lower bound of the usage, with the
    whole prompt counted as cached unless the engine reported otherwise. It never contradicts an exact event.
    ``price_version_id`` names the prices at admission. Billing charges them if they were in force then, else those
    that were. Its usage record has the highest of them; the close of the period applies tiers and included units.
    ``kv_page_ms`` is the area under the request's KV pages over time as its engine measured it. Without
    ``kv_measured`` it is the gateway's own figure, or, in an estimate, 0.
    ``aborted_prefill_tokens`` is the part of ``input_tokens`` that belongs to sequences which were aborted before their
    first token. Engines' own counters do not contain it. ``rank_class`` is that of the adapter's revision.
    ``service_tier`` and ``service_class`` are those that were applied, not those that were asked for.
    ``input_gpu_us`` and ``output_gpu_us`` are the base model's measured GPU time of a token.
    ``token_costs`` are those of the outside provider that served the request, None where an engine did. With
    ``counted_here`` the tokens are the gateway's own count, because the provider reported none that can be true.
    """

    request_id: str
    tenant_id: str
    key_id: str
    base_model: str
    adapter_id: str | None
    revision_id: str | None
    replica_id: str
    outcome: Outcome
    started_at_ms: int
    settled_at_ms: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int
    first_token_ms: int | None = None
    duration_ms: int = 0
    adapter_tier: Tier | None = None
    adapter_load_ms: int = 0
    stall_ms: int = 0
    estimated: bool = False
    price_version_id: str | None = None
    aborted_prefill_tokens: int = 0
    rank_class: int | None = None
    kv_measured: bool = False
    service_tier: ServiceTier = "default"
    service_class: ServiceClass = "interactive"
    input_gpu_us: int = 0
    output_gpu_us: int = 0
    token_costs: TokenCosts | None = None
    counted_here: bool = False

    @property
    def gpu_us(self) -> int:
        """The GPU time that counts towards the plan's limits, in microseconds. Cached prompt tokens take none."""
        return (self.input_tokens - self.cached_tokens) * self.input_gpu_us + self.output_tokens * self.output_gpu_us

    @property
    def provider_nanos(self) -> int | None:
        """What the request cost at its outside provider; None where an engine served it. The cached tokens of an
        estimate are the tenant's advantage only: the provider has reported none.
        """
        if self.token_costs is None:
            return None
        cached = 0 if self.estimated and self.counted_here else self.cached_tokens
        return self.token_costs.nanos(
            input_tokens=self.input_tokens, cached_tokens=cached, output_tokens=self.output_tokens
        )


CHECKPOINT_TOKENS_MAX: Final = 64
"""A gateway writes a checkpoint at least every so many tokens of a request, or every second if the engine is faster.
This bounds the tokens that stay uncharged when the gateway dies.
"""
