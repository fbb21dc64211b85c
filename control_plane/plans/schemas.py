"""Wire types of the plans room. The bounds keep every later sum in the range that Redis's Lua and Postgres count
exactly.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

import msgspec

from billing.prices.card import GeneralPrice, PriceCard
from core import fields
from core.contracts.grants import Limits
from core.fields import about

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

    requests_per_minute: Annotated[Rate, fields.REQUESTS_PER_MINUTE]
    tokens_per_minute: Annotated[Rate, fields.TOKENS_PER_MINUTE]
    concurrent_requests: Annotated[Concurrency, fields.CONCURRENT_REQUESTS]
    kv_pages: Annotated[Rate, fields.KV_PAGES]
    tokens_per_month: Annotated[Tokens, fields.TOKENS_PER_MONTH]
    context_tokens: Annotated[Window, fields.CONTEXT_TOKENS]
    output_tokens: Annotated[Window, fields.OUTPUT_TOKENS]
    adapters: Annotated[AdapterCount, fields.ADAPTERS]
    adapter_rank: Annotated[Rank, fields.ADAPTER_RANK]
    adapter_bytes: Annotated[AdapterBytes, fields.ADAPTER_BYTES]
    pinned_adapters: Annotated[PinnedAdapters, fields.PINNED_ADAPTERS] = 0
    input_tokens_per_minute: Annotated[Rate | None, fields.INPUT_TOKENS_PER_MINUTE] = None
    output_tokens_per_minute: Annotated[Rate | None, fields.OUTPUT_TOKENS_PER_MINUTE] = None
    spend_nanos_per_month: Annotated[SpendNanos | None, fields.SPEND_NANOS_PER_MONTH] = None
    count_cached_tokens: Annotated[bool, fields.COUNT_CACHED_TOKENS] = True
    weight: Annotated[Weight, fields.WEIGHT] = 1
    tier: Annotated[Tier, fields.TIER] = 1
    when_quota_is_unavailable: Annotated[WithoutQuota, fields.WHEN_QUOTA_IS_UNAVAILABLE] = "closed"


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

    limits: Annotated[LimitsChange | msgspec.UnsetType, fields.LIMITS] = msgspec.UNSET
    prices: Annotated[PricesChange | msgspec.UnsetType, fields.PRICES] = msgspec.UNSET
    effective_from: Annotated[Annotated[datetime, msgspec.Meta(tz=True)] | None, fields.EFFECTIVE_FROM] = None
    base_version: Annotated[VersionNumber | None, fields.BASE_VERSION] = None


class NewPlanDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and prices to publish later. With ``base_version``, only if that is the plan's newest version."""

    limits: Annotated[LimitsBody, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]
    base_version: Annotated[VersionNumber | None, fields.BASE_VERSION] = None


class DraftPublication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From when a draft applies: from ``effective_from`` on, or from now on."""

    effective_from: Annotated[Annotated[datetime, msgspec.Meta(tz=True)] | None, fields.EFFECTIVE_FROM] = None


class PlanDraftView(msgspec.Struct, frozen=True, kw_only=True):
    """A draft. ``base_version`` is the newest version when it was written; ``published_version_id`` is set once it is
    published, and then it never changes.
    """

    id: Annotated[str, fields.ID]
    plan_id: Annotated[str, fields.PLAN_ID]
    base_version: Annotated[int, fields.BASE_VERSION]
    limits: Annotated[Limits, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]
    created_by: Annotated[str, about("Id of the key that wrote it.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
    published_version_id: Annotated[str | None, about("Id of the version that it was published as; null before.")]


class NewSimulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices, or a draft with prices, to try on what was charged from ``start`` until ``end``. ``cursor`` continues a
    simulation.
    """

    prices: Annotated[PriceCard | None, fields.PRICES] = None
    draft: Annotated[DraftId | None, about("Id of a draft of the plan.")] = None
    start: Annotated[datetime, msgspec.Meta(tz=True), fields.START]
    end: Annotated[datetime, msgspec.Meta(tz=True), fields.END]
    cursor: Annotated[str | None, about("Where to go on, from the answer before; leave it out at first.")] = None


class NewPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new plan with its first limits and prices."""

    name: Annotated[PlanName, fields.NAME]
    limits: Annotated[LimitsBody, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]


class PlanVersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a plan. Of those that have begun, the one that began last applies. One that was withdrawn never
    begins.
    """

    id: Annotated[str, fields.ID]
    number: Annotated[int, fields.NUMBER_IN_ORDER]
    limits: Annotated[Limits, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]
    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]
    created_at: Annotated[datetime, fields.CREATED_AT]
    withdrawn_at: Annotated[datetime | None, about("When the version was withdrawn; null where it applies.")]


class PublishedVersion(PlanVersionView, frozen=True, kw_only=True):
    """A version that was published now, with the rank classes for which it has no prices of their own."""

    general_prices: Annotated[
        Sequence[GeneralPrice], about("Rank classes without prices of their own on the card, and what they cost.")
    ]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its current limits and prices."""

    id: Annotated[str, fields.ID]
    name: Annotated[str, fields.NAME]
    version: Annotated[int, fields.VERSION]
    limits: Annotated[Limits, fields.LIMITS]
    prices: Annotated[PriceCard, fields.PRICES]
    price_version_id: Annotated[str, about("Id of the prices that count.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
