"""Wire types of usage and costs in OpenAI's shapes. Fields that OpenAI does not have are ours, and exact.

``project_id`` is an adapter's id, "" for the base model itself, and null where usage is not grouped by it.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

UsageGrouping = Literal["model", "project_id", "api_key_id", "service_tier"]
CostItemGrouping = Literal["line_item", "project_id", "api_key_id"]


class CompletionsUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one group in one bucket, as OpenAI's ``organization.usage.completions.result``. What Tenora does not
    have is 0 or null. ``input_tokens`` includes the cached ones.
    """

    input_tokens: int
    output_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    num_model_requests: int
    aborted_prefill_tokens: int
    kv_page_ms: int
    amount_nanos: int
    cached_savings_nanos: int
    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    model: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    user_id: str | None = None
    batch: bool | None = None
    service_tier: str | None = None


class CostAmount(msgspec.Struct, frozen=True, kw_only=True):
    """An amount in dollars. ``value`` is a JSON number, which many clients read as a float; ``value_exact`` is text."""

    value: Decimal
    value_exact: str
    currency: Literal["usd"] = "usd"


class CompletionsCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one group in one bucket, as OpenAI's ``organization.costs.result``. ``line_item`` is a model and a kind
    of invoice line, such as ``smollm2-135m-instruct, output_tokens``.
    """

    amount: CostAmount
    amount_nanos: int
    object: Literal["organization.costs.result"] = "organization.costs.result"
    line_item: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    quantity: Decimal | None = None
    quantity_unit: Literal["tokens", "page_seconds"] | None = None


class TimeBucket(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What lies in ``[start_time, end_time)``, in Unix seconds. Buckets without usage have no results."""

    start_time: int
    end_time: int
    results: Sequence[T]
    object: Literal["bucket"] = "bucket"


class BucketPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of buckets in the order of time. A bucket of very many results goes on at the top of the next page."""

    data: Sequence[TimeBucket[T]]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


class TeamUsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a day. ``input_tokens`` includes the cached ones. ``…_usd`` are the exact dollars as text."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int
    amount_nanos: int
    amount_usd: str
    cached_savings_nanos: int
    cached_savings_usd: str


class TeamUsageRow(TeamUsageSums, frozen=True, kw_only=True):
    """Usage of one adapter, or of a base model itself, where ``adapter_id`` is "" and ``adapter`` null."""

    base_model: str
    adapter_id: str
    adapter: str | None


class TeamUsageDay(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's usage settled on one UTC day, by model and adapter. ``totals`` are of the whole day."""

    team_id: str
    date: date
    start: datetime
    end: datetime
    totals: TeamUsageSums
    data: Sequence[TeamUsageRow]
    has_more: bool
    next_page: str | None
    object: Literal["usage"] = "usage"
