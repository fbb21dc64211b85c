"""Wire types of the API keys room."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from control_plane.plans.schemas import Concurrency, Rate, SpendNanos, Tokens, Window
from core import fields
from core.contracts.grants import KeyLimits
from core.fields import about

Scope = Literal[
    "inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "billing:write", "keys:write",
    "notifications:write", "audit:read",
]  # fmt: skip
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]


class KeyLimitsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one key in a request. They apply in addition to the tenant's limits; a higher limit has no
    effect.
    """

    requests_per_minute: Annotated[Rate | None, fields.REQUESTS_PER_MINUTE] = None
    tokens_per_minute: Annotated[Rate | None, fields.TOKENS_PER_MINUTE] = None
    input_tokens_per_minute: Annotated[Rate | None, fields.INPUT_TOKENS_PER_MINUTE] = None
    output_tokens_per_minute: Annotated[Rate | None, fields.OUTPUT_TOKENS_PER_MINUTE] = None
    concurrent_requests: Annotated[Concurrency | None, fields.CONCURRENT_REQUESTS] = None
    kv_pages: Annotated[Rate | None, fields.KV_PAGES] = None
    tokens_per_month: Annotated[Tokens | None, fields.TOKENS_PER_MONTH] = None
    spend_nanos_per_month: Annotated[SpendNanos | None, fields.SPEND_NANOS_PER_MONTH] = None
    context_tokens: Annotated[Window | None, fields.CONTEXT_TOKENS] = None
    output_tokens: Annotated[Window | None, fields.OUTPUT_TOKENS] = None


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key. Without ``scopes`` it gets all scopes of the calling key, or all tenant scopes from an admin.
    ``limits`` cannot be changed later.
    """

    name: Annotated[Label, fields.NAME] = "default"
    scopes: Annotated[Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=20)] | None, fields.SCOPES] = (
        None
    )
    limits: Annotated[KeyLimitsBody | None, fields.LIMITS] = None


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. ``redacted`` has its prefix and last four characters."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str | None, fields.TENANT_ID]
    name: Annotated[str, fields.NAME]
    redacted: Annotated[str, fields.REDACTED]
    scopes: Annotated[list[str], fields.SCOPES]
    limits: Annotated[KeyLimits | None, fields.LIMITS]
    created_at: Annotated[datetime, fields.CREATED_AT]
    revoked_at: Annotated[datetime | None, about("When the key was revoked; null for a live key.")]


class ApiKeyCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A new key with its secret, which is shown only once. In a replay for an Idempotency-Key ``key`` is null."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    name: Annotated[str, fields.NAME]
    key: Annotated[str | None, about("The whole key. It is shown once.")]
    redacted: Annotated[str, fields.REDACTED]
    scopes: Annotated[list[str], fields.SCOPES]
    limits: Annotated[KeyLimits | None, fields.LIMITS]
    created_at: Annotated[datetime, fields.CREATED_AT]
    note: Annotated[str, about("What to do with the key.")]
