"""Wire types of usage and costs in OpenAI's shapes. Fields that OpenAI does not have are ours, and exact.

``project_id`` is an adapter's id, "" for the base model itself, and null where usage is not grouped by it.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from core import fields
from core.fields import about

T = TypeVar("T")

UsageGrouping = Literal["model", "project_id", "api_key_id", "service_tier"]
CostItemGrouping = Literal["line_item", "project_id", "api_key_id"]


class CompletionsUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one group in one bucket, as OpenAI's ``organization.usage.completions.result``. What Tenora does not
    have is 0 or null. ``input_tokens`` includes the cached ones.
    """

    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    input_cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    input_uncached_tokens: Annotated[int, about("Prompt tokens not from the prefix cache; part of the input.")]
    num_model_requests: Annotated[int, fields.REQUESTS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    cached_savings_nanos: Annotated[int, fields.CACHED_SAVINGS_NANOS]
    object: Annotated[Literal["organization.usage.completions.result"], fields.OBJECT] = (
        "organization.usage.completions.result"
    )
    model: Annotated[str | None, fields.MODEL] = None
    project_id: Annotated[str | None, fields.PROJECT_ID] = None
    api_key_id: Annotated[str | None, fields.API_KEY_ID] = None
    input_audio_tokens: Annotated[int, fields.INPUT_AUDIO_TOKENS] = 0
    output_audio_tokens: Annotated[int, fields.INPUT_AUDIO_TOKENS] = 0
    user_id: Annotated[str | None, fields.USER_ID] = None
    batch: Annotated[bool | None, about("Always null: Tenora has no batches.")] = None
    service_tier: Annotated[str | None, fields.SERVICE_TIER] = None


class CostAmount(msgspec.Struct, frozen=True, kw_only=True):
    """An amount in dollars. ``value`` is a JSON number, which many clients read as a float; ``value_exact`` is text."""

    value: Annotated[Decimal, about("Dollars as an exact JSON number.")]
    value_exact: Annotated[str, about("The same as text with nine decimals, for clients that read numbers as floats.")]
    currency: Annotated[Literal["usd"], fields.CURRENCY] = "usd"


class CompletionsCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one group in one bucket, as OpenAI's ``organization.costs.result``. ``line_item`` is a model and a kind
    of invoice line, such as ``smollm2-135m-instruct, output_tokens``.
    """

    amount: Annotated[CostAmount, about("The amount in dollars.")]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    object: Annotated[Literal["organization.costs.result"], fields.OBJECT] = "organization.costs.result"
    line_item: Annotated[str | None, about("Base model and kind of usage; null unless costs are grouped by it.")] = None
    project_id: Annotated[str | None, fields.PROJECT_ID] = None
    api_key_id: Annotated[str | None, fields.API_KEY_ID] = None
    user_id: Annotated[str | None, fields.USER_ID] = None
    quantity: Annotated[Decimal | None, fields.QUANTITY] = None
    quantity_unit: Annotated[Literal["tokens", "page_seconds"] | None, about("Unit of the quantity.")] = None


class TimeBucket(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What lies in ``[start_time, end_time)``, in Unix seconds. Buckets without usage have no results."""

    start_time: Annotated[int, about("Start of the bucket in Unix seconds, inclusive.")]
    end_time: Annotated[int, about("End of the bucket in Unix seconds, exclusive.")]
    results: Annotated[Sequence[T], about("The groups of the bucket; none without usage.")]
    object: Annotated[Literal["bucket"], fields.OBJECT] = "bucket"


class BucketPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of buckets in the order of time. A bucket of very many results goes on at the top of the next page."""

    data: Annotated[Sequence[TimeBucket[T]], about("The items.")]
    has_more: Annotated[bool, about("Whether there is another page.")]
    next_page: Annotated[str | None, about("The `page` parameter of the next page; null on the last.")]
    object: Annotated[Literal["page"], fields.OBJECT] = "page"


class TeamUsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a day. ``input_tokens`` includes the cached ones. ``…_usd`` are the exact dollars as text."""

    requests: Annotated[int, fields.REQUESTS]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    amount_usd: Annotated[str, about("The same amount in US dollars, exact, as text with nine decimals.")]
    cached_savings_nanos: Annotated[int, fields.CACHED_SAVINGS_NANOS]
    cached_savings_usd: Annotated[str, about("The same savings in US dollars, exact, as text with nine decimals.")]


class TeamUsageRow(TeamUsageSums, frozen=True, kw_only=True):
    """Usage of one adapter, or of a base model itself, where ``adapter_id`` is "" and ``adapter`` null."""

    base_model: Annotated[str, fields.BASE_MODEL]
    adapter_id: Annotated[str, fields.ADAPTER_ID]
    adapter: Annotated[str | None, fields.ADAPTER]


class TeamUsageDay(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's usage settled on one UTC day, by model and adapter. ``totals`` are of the whole day."""

    team_id: Annotated[str, fields.TENANT_ID]
    date: Annotated[date, about("The UTC day.")]
    start: Annotated[datetime, fields.START]
    end: Annotated[datetime, fields.END]
    totals: Annotated[TeamUsageSums, about("The usage of the whole day.")]
    data: Annotated[Sequence[TeamUsageRow], fields.DATA]
    has_more: Annotated[bool, about("Whether there is another page.")]
    next_page: Annotated[str | None, about("The `page` parameter of the next page; null on the last.")]
    object: Annotated[Literal["usage"], fields.OBJECT] = "usage"
