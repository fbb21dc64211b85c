"""Wire types of the API keys room."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from control_plane.plans.schemas import Concurrency, Rate, SpendNanos, Tokens, Window
from core.contracts.grants import KeyLimits

Scope = Literal[
    "inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "billing:write", "keys:write",
    "notifications:write", "audit:read",
]  # fmt: skip
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]


class KeyLimitsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one key in a request. They apply in addition to the tenant's limits; a higher limit has no
    effect.
    """

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    input_tokens_per_minute: Rate | None = None
    output_tokens_per_minute: Rate | None = None
    concurrent_requests: Concurrency | None = None
    kv_pages: Rate | None = None
    tokens_per_month: Tokens | None = None
    spend_nanos_per_month: SpendNanos | None = None
    context_tokens: Window | None = None
    output_tokens: Window | None = None


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key. Without ``scopes`` it gets all scopes of the calling key, or all tenant scopes from an admin.
    ``limits`` cannot be changed later.
    """

    name: Label = "default"
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=20)] | None = None
    limits: KeyLimitsBody | None = None


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. ``redacted`` has its prefix and last four characters."""

    id: str
    tenant_id: str | None
    name: str
    redacted: str
    scopes: list[str]
    limits: KeyLimits | None
    created_at: datetime
    revoked_at: datetime | None


class ApiKeyCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A new key with its secret, which is shown only once. In a replay for an Idempotency-Key ``key`` is null."""

    id: str
    tenant_id: str
    name: str
    key: str | None
    redacted: str
    scopes: list[str]
    limits: KeyLimits | None
    created_at: datetime
    note: str
