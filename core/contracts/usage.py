"""The usage event: what a gateway tells billing about each request. The request id identifies the charge.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Final, Literal

import msgspec

from core.contracts.replicas import Tier

Outcome = Literal["done", "client_gone", "replica_gone", "timeout", "gateway_gone"]

REST: Final = ":rest"
"""Ends the id of what a request used beyond the estimate that was billed of it: no request of its own."""


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one request used, by the engine's own counts. The same request id twice is one charge.

    ``adapter_tier`` is where its adapter lay when it came (None for a base model), ``adapter_load_ms`` how long the
    request waited for it, ``stall_ms`` for how long its loading held up the step that every running request shares.
    An ``estimated`` event is the last checkpoint of a request whose gateway died: no more than it used, all its prompt
    cached unless the engine had said otherwise, and never a contradiction of an exact one. ``price_version_id`` is by
    which prices it was admitted, and so is charged.
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


CHECKPOINT_TOKENS_MAX: Final = 64
"""Tokens of one request after which a gateway writes another checkpoint, and so what its death leaves uncharged, or a
second's where an engine is faster than that.
"""
