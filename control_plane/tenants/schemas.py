"""Wire types of the tenants room."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from control_plane.plans.schemas import LimitsBody, change_of
from control_plane.tenants.limit_overrides import OverrideTerms
from core import fields
from core.contracts.grants import Limits
from core.fields import about

TenantName = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=fields.ONE_LINE)]
PlanIdOrName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}(?!\n)$")]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=fields.ONE_LINE)]
TenantStatus = Literal["active", "suspended", "closed"]


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new tenant. ``plan`` is a plan's id or name."""

    name: Annotated[TenantName, fields.NAME]
    plan: Annotated[PlanIdOrName, fields.PLAN]


if TYPE_CHECKING:
    LimitsPatch = Limits
else:
    LimitsPatch = change_of(
        "LimitsPatch",
        LimitsBody,
        "Single limits that replace the plan's. Null restores the plan's limit (RFC 7396).",
        none=True,
    )


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a tenant. An omitted field keeps its value. ``limits_reason`` and ``limits_expire_at`` are the terms
    of the limits in the same request.
    """

    name: Annotated[TenantName | msgspec.UnsetType, fields.NAME] = msgspec.UNSET
    plan: Annotated[PlanIdOrName | msgspec.UnsetType, fields.PLAN] = msgspec.UNSET
    status: Annotated[Literal["active", "suspended"] | msgspec.UnsetType, fields.STATUS] = msgspec.UNSET
    limits: Annotated[LimitsPatch | msgspec.UnsetType, fields.LIMITS] = msgspec.UNSET
    limits_reason: Annotated[
        Reason | msgspec.UnsetType | None, about("Why these limits replace the plan's. Only admins see it.")
    ] = msgspec.UNSET
    limits_expire_at: Annotated[
        datetime | msgspec.UnsetType | None, about("When the plan's limits hold again; null: when they are changed.")
    ] = msgspec.UNSET


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant with its effective limits: the plan's limits with the tenant's overrides."""

    id: Annotated[str, fields.ID]
    name: Annotated[str, fields.NAME]
    plan: Annotated[str, fields.PLAN]
    plan_id: Annotated[str, fields.PLAN_ID]
    status: Annotated[TenantStatus, fields.STATUS]
    limits: Annotated[Limits, fields.LIMITS]
    limit_overrides: Annotated[dict[str, Any], about("Limits of this tenant that replace those of its plan.")]
    limit_override_terms: Annotated[
        dict[str, OverrideTerms],
        about("Reason and end of each override that has any, by its limit. Tenants see no reasons."),
    ]
    created_at: Annotated[datetime, fields.CREATED_AT]


class MonthOfTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used in the current UTC month, as far as billing has recorded it."""

    tokens: Annotated[int, about("Prompt and generated tokens.")]
    charged_nanos: Annotated[int, fields.CHARGED_NANOS]
    cost_nanos: Annotated[int, fields.COST_NANOS]
    limit_used_ppm: Annotated[
        int, about("Used part of the monthly tokens or of a spending limit, whichever is most, in millionths.")
    ]


class ListedTenant(TenantView, frozen=True, kw_only=True):
    """A tenant in a list, with its current month."""

    this_month: Annotated[MonthOfTenant, about("Its current UTC month, as far as it is recorded.")]


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant and the scopes of a key."""

    tenant: Annotated[TenantView, about("The tenant.")]
    key_id: Annotated[str, fields.KEY_ID]
    scopes: Annotated[list[str], fields.SCOPES]
