"""Wire types of the API keys room."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

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
Overlap = Literal["none", "1h", "24h", "7d"]
CallableModel = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}(?!\n)$")]
_CallableModels = Annotated[tuple[CallableModel, ...], msgspec.Meta(min_length=1, max_length=100)]
_LIFE_DAYS_MAX: Final = 3_650
_MODELS: Final = about(
    "Adapters, groups and base models that the key may call, by name and without alias or revision; null for all. A "
    "group's members are called through the group."
)
_EXPIRES_AT: Final = about("When the key ends by itself; null for one that ends only when it is revoked.")
_PREVIOUS_ENDS_AT: Final = about("When the secret before the last rotation ends; null where none is valid.")


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
    ``limits``, ``models`` and the expiry cannot be changed later.
    """

    name: Annotated[Label, fields.NAME] = "default"
    scopes: Annotated[Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=20)] | None, fields.SCOPES] = (
        None
    )
    limits: Annotated[KeyLimitsBody | None, fields.LIMITS] = None
    models: Annotated[_CallableModels | None, _MODELS] = None
    expires_in_days: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=_LIFE_DAYS_MAX)] | None,
        about("Days after which the key ends by itself; null for never."),
    ] = None


class KeyRotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new secret for a key."""

    overlap: Annotated[Overlap, about("How long the secret before it stays valid; none ends it at once.")] = "24h"


class ApiKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. ``redacted`` has its prefix and last four characters."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str | None, fields.TENANT_ID]
    name: Annotated[str, fields.NAME]
    redacted: Annotated[str, fields.REDACTED]
    scopes: Annotated[list[str], fields.SCOPES]
    limits: Annotated[KeyLimits | None, fields.LIMITS]
    models: Annotated[list[str] | None, _MODELS]
    created_at: Annotated[datetime, fields.CREATED_AT]
    expires_at: Annotated[datetime | None, _EXPIRES_AT]
    previous_ends_at: Annotated[datetime | None, _PREVIOUS_ENDS_AT]
    revoked_at: Annotated[datetime | None, about("When the key was revoked, or expired; null for a live key.")]


class ApiKeyCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A new or rotated key with its secret, which is shown once. In a replay for an Idempotency-Key ``key`` is null."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    name: Annotated[str, fields.NAME]
    key: Annotated[str | None, about("The whole key. It is shown once.")]
    redacted: Annotated[str, fields.REDACTED]
    scopes: Annotated[list[str], fields.SCOPES]
    limits: Annotated[KeyLimits | None, fields.LIMITS]
    models: Annotated[list[str] | None, _MODELS]
    created_at: Annotated[datetime, fields.CREATED_AT]
    expires_at: Annotated[datetime | None, _EXPIRES_AT]
    previous_ends_at: Annotated[datetime | None, _PREVIOUS_ENDS_AT]
    note: Annotated[str, about("What to do with the key.")]
