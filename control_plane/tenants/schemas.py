"""Wire types of the tenants room."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from control_plane.plans.schemas import (
    AdapterBytes,
    AdapterCount,
    Concurrency,
    PinnedAdapters,
    Rank,
    Rate,
    SpendNanos,
    Tier,
    Tokens,
    Weight,
    Window,
    WithoutQuota,
)
from control_plane.tenants.limit_overrides import OverrideTerms
from core.contracts.grants import Limits

TenantName = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
PlanIdOrName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}(?!\n)$")]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]
TenantStatus = Literal["active", "suspended", "closed"]


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new tenant. ``plan`` is a plan's id or name."""

    name: TenantName
    plan: PlanIdOrName


class LimitsPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single limits that replace the plan's, within the bounds of plans. Null restores the plan's limit (RFC 7396)."""

    requests_per_minute: Rate | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: Rate | msgspec.UnsetType | None = msgspec.UNSET
    concurrent_requests: Concurrency | msgspec.UnsetType | None = msgspec.UNSET
    kv_pages: Rate | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_month: Tokens | msgspec.UnsetType | None = msgspec.UNSET
    context_tokens: Window | msgspec.UnsetType | None = msgspec.UNSET
    output_tokens: Window | msgspec.UnsetType | None = msgspec.UNSET
    adapters: AdapterCount | msgspec.UnsetType | None = msgspec.UNSET
    adapter_rank: Rank | msgspec.UnsetType | None = msgspec.UNSET
    adapter_bytes: AdapterBytes | msgspec.UnsetType | None = msgspec.UNSET
    pinned_adapters: PinnedAdapters | msgspec.UnsetType | None = msgspec.UNSET
    input_tokens_per_minute: Rate | msgspec.UnsetType | None = msgspec.UNSET
    output_tokens_per_minute: Rate | msgspec.UnsetType | None = msgspec.UNSET
    spend_nanos_per_month: SpendNanos | msgspec.UnsetType | None = msgspec.UNSET
    count_cached_tokens: bool | msgspec.UnsetType | None = msgspec.UNSET
    weight: Weight | msgspec.UnsetType | None = msgspec.UNSET
    tier: Tier | msgspec.UnsetType | None = msgspec.UNSET
    when_quota_is_unavailable: WithoutQuota | msgspec.UnsetType | None = msgspec.UNSET


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a tenant. An omitted field keeps its value. ``limits_reason`` and ``limits_expire_at`` are the terms
    of the limits in the same request.
    """

    name: TenantName | msgspec.UnsetType = msgspec.UNSET
    plan: PlanIdOrName | msgspec.UnsetType = msgspec.UNSET
    status: Literal["active", "suspended"] | msgspec.UnsetType = msgspec.UNSET
    limits: LimitsPatch | msgspec.UnsetType = msgspec.UNSET
    limits_reason: Reason | msgspec.UnsetType | None = msgspec.UNSET
    limits_expire_at: datetime | msgspec.UnsetType | None = msgspec.UNSET


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant with its effective limits: the plan's limits with the tenant's overrides."""

    id: str
    name: str
    plan: str
    plan_id: str
    status: TenantStatus
    limits: Limits
    limit_overrides: dict[str, Any]
    limit_override_terms: dict[str, OverrideTerms]
    created_at: datetime


class MonthOfTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used in the current UTC month, as far as billing has recorded it."""

    tokens: int
    charged_nanos: int
    cost_nanos: int
    limit_used_ppm: int


class ListedTenant(TenantView, frozen=True, kw_only=True):
    """A tenant in a list, with its current month."""

    this_month: MonthOfTenant


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant and the scopes of a key."""

    tenant: TenantView
    key_id: str
    scopes: list[str]
