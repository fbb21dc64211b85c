"""Wire types of the plans room. The bounds keep every later sum in the range that Redis's Lua and Postgres count
exactly.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_type_hints

import msgspec

from billing.prices.card import GeneralPrice, PriceCard
from core import fields
from core.contracts.grants import Limits, ServiceClass
from core.fields import about

Rate = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000)]
Window = Annotated[int, msgspec.Meta(gt=0, le=16_777_216)]
VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
DraftId = Annotated[str, msgspec.Meta(pattern=r"^pd_[0-9a-z]{26}(?!\n)$")]
PlanName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$")]


_BOUNDS: Final[Mapping[str, Any]] = {
    "requests_per_minute": Rate,
    "tokens_per_minute": Rate,
    "concurrent_requests": Annotated[int, msgspec.Meta(gt=0, le=100_000)],
    "kv_pages": Rate,
    "tokens_per_month": Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000)],
    "context_tokens": Window,
    "output_tokens": Window,
    "adapters": Annotated[int, msgspec.Meta(gt=0, le=100_000)],
    "adapter_rank": Annotated[int, msgspec.Meta(gt=0, le=512)],
    "adapter_bytes": Annotated[int, msgspec.Meta(gt=0, le=5_000_000_000)],  # of one upload
    "pinned_adapters": Annotated[int, msgspec.Meta(ge=0, le=100_000)],  # kept in replicas' host memory
    "input_tokens_per_minute": Rate,
    "output_tokens_per_minute": Rate,
    "gpu_seconds_per_minute": Annotated[int, msgspec.Meta(gt=0, le=1_000_000)],
    "gpu_seconds_per_month": Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000)],
    "spend_nanos_per_month": Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000_000)],
    "weight": Annotated[int, msgspec.Meta(ge=1, le=1000)],
    "tier": Annotated[int, msgspec.Meta(ge=0, le=9)],
    "service_classes": Annotated[tuple[ServiceClass, ...], msgspec.Meta(min_length=1, max_length=3)],
    "batch_tokens": Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000)],
}
"""Bounds of the limits in requests. Gateways read limits without bounds, so that a bound may be changed."""


def bounded(name: str, limits: type[msgspec.Struct], doc: str) -> type[msgspec.Struct]:
    """The limits of a contract as requests have them: within their bounds, and without other fields."""
    made: list[Any] = []
    for field in msgspec.structs.fields(limits):
        kind = field.type
        if (bound := _BOUNDS.get(field.name)) is not None:
            optional = type(None) in get_args(kind.__origin__)
            kind = Annotated[bound | None if optional else bound, *kind.__metadata__]
        made.append((field.name, kind) if field.required else (field.name, kind, field.default))
    return _body(name, made, doc)


def change_of(name: str, whole: type[msgspec.Struct], doc: str, *, none: bool = False) -> type[msgspec.Struct]:
    """The same fields, each of which may be left out, or with ``none`` be null."""
    made: list[Any] = []
    for field, kind in get_type_hints(whole, include_extras=True).items():
        kinds = kind | msgspec.UnsetType | None if none else kind | msgspec.UnsetType
        made.append((field, Annotated[kinds, kind.__metadata__[-1]], msgspec.UNSET))
    return _body(name, made, doc)


def _body(name: str, made: list[Any], doc: str) -> type[msgspec.Struct]:
    body = msgspec.defstruct(name, made, frozen=True, kw_only=True, forbid_unknown_fields=True, module=__name__)
    body.__doc__ = doc
    return body


if TYPE_CHECKING:
    LimitsBody = Limits
    LimitsChange = Limits
    PricesChange = PriceCard
else:
    LimitsBody = bounded("LimitsBody", Limits, "The limits of a plan in a request.")
    LimitsChange = change_of("LimitsChange", LimitsBody, "Limits that change.")
    PricesChange = change_of("PricesChange", PriceCard, "Prices that change. A list replaces the whole list.")


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
