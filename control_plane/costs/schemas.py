"""Wire types of the costs room. Amounts are nanodollars; bounds keep every later sum in a 64-bit integer."""

from datetime import date, datetime
from typing import Annotated

import msgspec

from billing.costs.break_even import PriceStatus
from billing.costs.report import CostGrouping, MarginRow, UnratedPool

_RATE_NANOS_MAX = 1_000_000_000_000_000  # a million dollars an hour
_MTOK_NANOS_MAX = 1_000_000_000_000_000  # a million dollars for a million tokens

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?!\n)$")]
RankMax = Annotated[int, msgspec.Meta(ge=1, le=512)]
RateNanos = Annotated[int, msgspec.Meta(ge=0, le=_RATE_NANOS_MAX)]
MtokNanos = Annotated[int, msgspec.Meta(ge=0, le=_MTOK_NANOS_MAX)]
CurrencyCode = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{3}(?!\n)$")]
SourceText = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")]


class NewPoolRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one replica of a pool costs an hour from an instant on. A rate is never changed: a later one replaces it."""

    base_model: Name
    rank_max: RankMax
    effective_from: Annotated[datetime, msgspec.Meta(tz=True)]
    nanos_per_hour: RateNanos
    slot_nanos_per_hour: RateNanos = 0


class NewOutsidePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider charged for a million tokens of a model on a day, in billionths of its currency."""

    base_model: Name
    provider: Name
    as_of: date
    currency: CurrencyCode
    input_nanos_per_mtok: MtokNanos
    output_nanos_per_mtok: MtokNanos
    source: SourceText


class CostFunctionView(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted cost function. Weights are picoseconds of step time, errors parts per million. ``flags`` say why it
    needs a new calibration.
    """

    id: str
    base_model: str
    rank_max: int
    engine: str
    device: str
    fixed_ps: int
    prefill_token_ps: int
    decode_token_ps: int
    context_token_ps: int
    adapter_ps: int
    observations: int
    held_out: int
    median_error_ppm: int
    ratio_ppm: int
    flags: list[str]
    measured_from: datetime
    measured_until: datetime


class SavingView(msgspec.Struct, frozen=True, kw_only=True):
    """Own cost beside an outside price. Amounts are null unless ``status`` is current."""

    status: PriceStatus
    provider: str | None
    as_of: date | None
    outside_nanos: int | None
    saving_ppm: int | None
    reaches_goal: bool | None


class ModelEconomicsView(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a base model cost: observed, with idle time, and at full use."""

    base_model: str
    tokens: int
    total_nanos: int
    paid_ms: int
    busy_ms: int
    utilisation_ppm: int
    break_even_observed_nanos: int | None
    break_even_full_use_nanos: int | None
    saving: SavingView
    unfitted_hours: int
    flagged_hours: int


class NamedMarginRow(MarginRow, frozen=True, kw_only=True):
    """A row with the name of what it is of; null where it is of nothing that has one. An adapter's also has its tenant,
    because adapters of two tenants may have the same name.
    """

    name: str | None
    tenant_id: str | None = None
    tenant: str | None = None


class CostReportView(msgspec.Struct, frozen=True, kw_only=True):
    """Revenue, cost and margin of a period. ``total_nanos`` is the sum of the rows' ``cost_nanos`` and of the
    ``platform`` amounts. Replicas of ``unrated_pools`` wait for a rate, so their time has no cost.
    """

    start: datetime
    end: datetime
    allocated_until: datetime | None
    revenue_until: datetime
    unrated_pools: list[UnratedPool]
    group_by: CostGrouping
    total_nanos: int
    revenue_nanos: int
    rows: list[NamedMarginRow]
    platform: dict[str, int]
    models: list[ModelEconomicsView]
