"""Wire types of the API keys room."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from control_plane.plans.schemas import bounded
from core import fields
from core.contracts.grants import KeyLimits
from core.fields import about

Scope = Literal[
    "inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "billing:write", "keys:write",
    "notifications:write", "audit:read",
]  # fmt: skip
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=fields.ONE_LINE)]


if TYPE_CHECKING:
    KeyLimitsBody = KeyLimits
else:
    KeyLimitsBody = bounded(
        "KeyLimitsBody",
        KeyLimits,
        "The limits of one key in a request, beside those of its tenant; a higher limit has no effect.",
    )


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
