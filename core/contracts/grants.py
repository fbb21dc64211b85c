"""What a gateway knows of keys, tenants and their limits. The control plane publishes these values through Redis.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan allows a tenant. Every number is a ceiling, None is none. ``count_cached_tokens`` says whether prompt
    tokens from a prefix cache count towards the minute and the month, once it is known that they were. Where requests
    have to wait, tenants of a smaller ``tier`` go first, and within one each gets its ``weight`` of the tokens.
    While Redis does not answer nobody is admitted (``closed``), or as many as a gateway took beforehand (``slice``).
    """

    requests_per_minute: int
    tokens_per_minute: int
    concurrent_requests: int
    kv_pages: int
    tokens_per_month: int
    context_tokens: int
    output_tokens: int
    adapters: int
    adapter_rank: int
    adapter_bytes: int
    pinned_adapters: int = 0
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    spend_nanos_per_month: int | None = None
    count_cached_tokens: bool = True
    weight: int = 1
    tier: int = 1
    when_quota_is_unavailable: Literal["closed", "slice"] = "closed"


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may take of what its tenant may. None is no limit of the key's own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    kv_pages: int | None = None
    tokens_per_month: int | None = None
    spend_nanos_per_month: int | None = None
    context_tokens: int | None = None
    output_tokens: int | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Nanodollars per token, and per KV page and second."""

    input_nanos: int
    cached_input_nanos: int
    output_nanos: int
    kv_page_second_nanos: int


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway knows of an API key; published under the key's HMAC."""

    key_id: str
    tenant_id: str
    scopes: tuple[str, ...]
    limits: KeyLimits | None = None


class TenantGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway knows of a tenant; published under its id. ``charged_nanos`` was charged before the present month,
    and ``spend_ceiling_nanos`` is what may have been charged in all by its end; None is no ceiling. ``prices`` are
    those of ``price_version_id`` in billing's price book.
    """

    tenant_id: str
    status: Literal["active", "suspended"]
    limits: Limits
    prices: Prices | None = None
    price_version_id: str | None = None
    spend_ceiling_nanos: int | None = None
    charged_nanos: int = 0
