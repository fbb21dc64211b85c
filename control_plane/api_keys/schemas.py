"""Wire types of the API keys room."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

Scope = Literal["inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "keys:write"]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``scopes`` left out: all that the minting key has (from an admin: all there are)."""

    name: Label = "default"
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=20)] | None = None


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it. ``redacted`` is its prefix and last four characters."""

    id: str
    tenant_id: str | None
    name: str
    redacted: str
    scopes: list[str]
    created_at: datetime
    revoked_at: datetime | None


class ApiKeyCreated(msgspec.Struct, frozen=True, kw_only=True):
    """The only time a secret is shown. Replayed for an Idempotency-Key, ``key`` is null: secrets are not stored."""

    id: str
    tenant_id: str
    name: str
    key: str | None
    redacted: str
    scopes: list[str]
    created_at: datetime
    note: str
