"""Wire types of the plans room. The bounds keep every later sum in the range that Redis's Lua and Postgres count
exactly.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

import msgspec

from billing.prices.card import GeneralPrice, PriceCard
from core.contracts.grants import Limits

Rate = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000)]
Tokens = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000)]
Window = Annotated[int, msgspec.Meta(gt=0, le=16_777_216)]
Concurrency = Annotated[int, msgspec.Meta(gt=0, le=100_000)]
AdapterCount = Annotated[int, msgspec.Meta(gt=0, le=100_000)]
Rank = Annotated[int, msgspec.Meta(gt=0, le=512)]
PinnedAdapters = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
AdapterBytes = Annotated[int, msgspec.Meta(gt=0, le=5_000_000_000)]
SpendNanos = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000_000)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Tier = Annotated[int, msgspec.Meta(ge=0, le=9)]
VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
DraftId = Annotated[str, msgspec.Meta(pattern=r"^pd_[0-9a-z]{26}(?!\n)$")]
WithoutQuota = Literal["closed", "slice"]
PlanName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$")]


class LimitsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a plan in a request. Every number is bounded. All are positive except ``pinned_adapters``, the
    number of adapters kept in replicas' host memory, and ``tier``, where a smaller tier waits less. ``adapter_bytes``
    limits one upload.
    """

    requests_per_minute: Rate
    tokens_per_minute: Rate
    concurrent_requests: Concurrency
    kv_pages: Rate
    tokens_per_month: Tokens
    context_tokens: Window
    output_tokens: Window
    adapters: AdapterCount
    adapter_rank: Rank
    adapter_bytes: AdapterBytes
    pinned_adapters: PinnedAdapters = 0
    input_tokens_per_minute: Rate | None = None
    output_tokens_per_minute: Rate | None = None
    spend_nanos_per_month: SpendNanos | None = None
    count_cached_tokens: bool = True
    weight: Weight = 1
    tier: Tier = 1
    when_quota_is_unavailable: WithoutQuota = "closed"


if TYPE_CHECKING:
    LimitsChange = LimitsBody
    PricesChange = PriceCard
else:

    def _change_of(name: str, whole: type[msgspec.Struct]) -> type[msgspec.Struct]:
        """The same fields, each of which may be left out."""
        hints = get_type_hints(whole, include_extras=True)
        fields = [(field, hints[field] | msgspec.UnsetType, msgspec.UNSET) for field in whole.__struct_fields__]
        made = msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True, module=__name__)
        made.__doc__ = f"Fields of ``{whole.__name__}`` that change. A list replaces the whole list."
        return made

    LimitsChange = _change_of("LimitsChange", LimitsBody)
    PricesChange = _change_of("PricesChange", PriceCard)


class NewPlanVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changes of a plan's limits and prices from ``effective_from`` on, or from now on. All other fields are those
    of the version that holds then. With ``base_version``, only if that is the plan's newest version.
    """

    limits: LimitsChange | msgspec.UnsetType = msgspec.UNSET
    prices: PricesChange | msgspec.UnsetType = msgspec.UNSET
    effective_from: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    base_version: VersionNumber | None = None


class NewPlanDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and prices to publish later. With ``base_version``, only if that is the plan's newest version."""

    limits: LimitsBody
    prices: PriceCard
    base_version: VersionNumber | None = None


class DraftPublication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From when a draft applies: from ``effective_from`` on, or from now on."""

    effective_from: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class PlanDraftView(msgspec.Struct, frozen=True, kw_only=True):
    """A draft. ``base_version`` is the newest version when it was written; ``published_version_id`` is set once it is
    published, and then it never changes.
    """

    id: str
    plan_id: str
    base_version: int
    limits: Limits
    prices: PriceCard
    created_by: str
    created_at: datetime
    published_version_id: str | None


class NewSimulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices, or a draft with prices, to try on what was charged from ``start`` until ``end``. ``cursor`` continues a
    simulation.
    """

    prices: PriceCard | None = None
    draft: DraftId | None = None
    start: Annotated[datetime, msgspec.Meta(tz=True)]
    end: Annotated[datetime, msgspec.Meta(tz=True)]
    cursor: str | None = None


class NewPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new plan with its first limits and prices."""

    name: PlanName
    limits: LimitsBody
    prices: PriceCard


class PlanVersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a plan. Of those that have begun, the one that began last applies. One that was withdrawn never
    begins.
    """

    id: str
    number: int
    limits: Limits
    prices: PriceCard
    effective_from: datetime
    created_at: datetime
    withdrawn_at: datetime | None


class PublishedVersion(PlanVersionView, frozen=True, kw_only=True):
    """A version that was published now, with the rank classes for which it has no prices of their own."""

    general_prices: Sequence[GeneralPrice]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its current limits and prices."""

    id: str
    name: str
    version: int
    limits: Limits
    prices: PriceCard
    price_version_id: str
    created_at: datetime
