"""Wire types of the costs room. Amounts are nanodollars; bounds keep every later sum in a 64-bit integer."""

from datetime import date, datetime
from typing import Annotated

import msgspec

from billing.costs.break_even import PriceStatus
from billing.costs.due_hours import UnratedReplicas
from billing.costs.report import CostGrouping, MarginRow
from core import fields
from core.fields import about

_RATE_NANOS_MAX = 1_000_000_000_000_000  # a million dollars an hour
_MTOK_NANOS_MAX = 1_000_000_000_000_000  # a million dollars for a million tokens

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?!\n)$")]
RankMax = Annotated[int, msgspec.Meta(ge=1, le=512)]
RatePool = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9][a-z0-9-]{0,62})?(?!\n)$")]
RateNanos = Annotated[int, msgspec.Meta(ge=0, le=_RATE_NANOS_MAX)]
MtokNanos = Annotated[int, msgspec.Meta(ge=0, le=_MTOK_NANOS_MAX)]
CurrencyCode = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{3}(?!\n)$")]
SourceText = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=fields.ONE_LINE)]


class NewReplicaRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one replica costs an hour from an instant on. A rate is never changed: a later one replaces it. A pool's
    first rate replaces that of its base model and rank class.
    """

    base_model: Annotated[Name, fields.BASE_MODEL]
    rank_max: Annotated[RankMax, fields.RANK_MAX]
    pool: Annotated[RatePool, fields.RATE_POOL] = ""
    effective_from: Annotated[datetime, msgspec.Meta(tz=True), fields.EFFECTIVE_FROM]
    nanos_per_hour: Annotated[RateNanos, fields.NANOS_PER_HOUR]
    slot_nanos_per_hour: Annotated[RateNanos, fields.SLOT_NANOS_PER_HOUR] = 0


class NewOutsidePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider charged for a million tokens of a model on a day, in billionths of its currency."""

    base_model: Annotated[Name, fields.BASE_MODEL]
    provider: Annotated[Name, fields.PROVIDER]
    as_of: Annotated[date, fields.AS_OF]
    currency: Annotated[CurrencyCode, fields.CURRENCY]
    input_nanos_per_mtok: Annotated[MtokNanos, fields.INPUT_NANOS_PER_MTOK]
    output_nanos_per_mtok: Annotated[MtokNanos, fields.OUTPUT_NANOS_PER_MTOK]
    source: Annotated[SourceText, fields.PRICE_SOURCE]


class CostFunctionView(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted cost function. Weights are picoseconds of step time, errors parts per million. ``flags`` say why it
    needs a new calibration.
    """

    id: Annotated[str, fields.ID]
    base_model: Annotated[str, fields.BASE_MODEL]
    rank_max: Annotated[int, about("Rank class of the replicas.")]
    engine: Annotated[str, about("Engine and its version.")]
    device: Annotated[str, about("Kind of device that the engine ran on.")]
    fixed_ps: Annotated[int, about("Picoseconds of every step.")]
    prefill_token_ps: Annotated[int, about("Picoseconds of step time for each computed prompt token.")]
    decode_token_ps: Annotated[int, about("Picoseconds of step time for each decoded token.")]
    context_token_ps: Annotated[int, about("Picoseconds of step time for each context token that a decode step reads.")]
    adapter_ps: Annotated[int, about("Picoseconds of step time for each distinct adapter of a step.")]
    observations: Annotated[int, about("Measured windows, held-out ones included.")]
    held_out: Annotated[int, about("Measured windows that the fit did not see.")]
    median_error_ppm: Annotated[int, about("Median error of predicted step times on held-out windows, in millionths.")]
    ratio_ppm: Annotated[int, about("Predicted over measured step time on held-out windows, in millionths.")]
    flags: Annotated[list[str], about("Why the cost function needs a new calibration; empty when it does not.")]
    measured_from: Annotated[datetime, about("Start of the measured windows.")]
    measured_until: Annotated[datetime, about("End of the measured windows.")]


class SavingView(msgspec.Struct, frozen=True, kw_only=True):
    """Own cost beside an outside price. Amounts are null unless ``status`` is current."""

    status: Annotated[PriceStatus, fields.STATUS]
    provider: Annotated[str | None, fields.PROVIDER]
    as_of: Annotated[date | None, fields.AS_OF]
    outside_nanos: Annotated[
        int | None,
        about("What the same tokens would have cost elsewhere, in nanodollars; null without a current price."),
    ]
    saving_ppm: Annotated[
        int | None, about("What is saved, in millionths of the outside price; negative when the own cost is higher.")
    ]
    reaches_goal: Annotated[bool | None, about("Whether at least 40 % is saved; null without a current price.")]


class ModelEconomicsView(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a base model cost: observed, with idle time, and at full use."""

    base_model: Annotated[str, fields.BASE_MODEL]
    tokens: Annotated[int, about("Prompt and generated tokens of the replicas and hours that have a cost.")]
    total_nanos: Annotated[int, fields.TOTAL_NANOS]
    paid_ms: Annotated[int, about("Milliseconds of replicas that were paid.")]
    busy_ms: Annotated[int, about("Milliseconds in which engines ran steps.")]
    utilisation_ppm: Annotated[int, about("Busy time in millionths of the paid time.")]
    break_even_observed_nanos: Annotated[
        int | None, about("Nanodollars for a million tokens over all paid time; null without tokens.")
    ]
    break_even_full_use_nanos: Annotated[
        int | None, about("Nanodollars for a million tokens if replicas were always busy; null without tokens.")
    ]
    saving: Annotated[
        SavingView,
        about(
            "Own cost beside an outside price: what a provider charged on average for a token of its model whose "
            "prompts are counted like this one's, else the newest price that was entered. Same tokenizer, not same "
            "quality."
        ),
    ]
    unfitted_hours: Annotated[int, about("Hours that were shared out before a cost function was fitted.")]
    flagged_hours: Annotated[int, about("Hours in which predicted over measured time was outside 0.8 to 1.25.")]


class NamedMarginRow(MarginRow, frozen=True, kw_only=True):
    """A row with the name of what it is of; null where it is of nothing that has one. An adapter's also has its tenant,
    because adapters of two tenants may have the same name.
    """

    name: Annotated[str | None, about("Its name; null for the base model's own usage and for the account.")]
    tenant_id: Annotated[str | None, about("Id of the adapter's tenant; null where rows are not of adapters.")] = None
    tenant: Annotated[str | None, about("Name of the adapter's tenant; null where rows are not of adapters.")] = None


class CostReportView(msgspec.Struct, frozen=True, kw_only=True):
    """Revenue, cost and margin of a period. ``total_nanos`` sums the rows' ``cost_nanos`` and ``platform``."""

    start: Annotated[datetime, fields.START]
    end: Annotated[datetime, fields.END]
    allocated_until: Annotated[datetime | None, about("Until when costs are final; null before the first hour.")]
    revenue_until: Annotated[datetime, about("Up to when revenue is counted; later hours have no cost yet.")]
    unrated: Annotated[
        tuple[UnratedReplicas, ...], about("Pools and placement groups that wait for a rate: their time has no cost.")
    ]
    group_by: Annotated[CostGrouping, about("What the rows are of.")]
    total_nanos: Annotated[int, fields.TOTAL_NANOS]
    revenue_nanos: Annotated[int, fields.REVENUE_NANOS]
    rows: Annotated[list[NamedMarginRow], about("Revenue and cost by key.")]
    platform: Annotated[dict[str, int], about("Cost that belongs to no tenant, in nanodollars by kind.")]
    models: Annotated[tuple[ModelEconomicsView, ...], about("Break-even and savings by base model.")]
