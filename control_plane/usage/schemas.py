"""Wire types of the usage room."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from billing.usage.views import Service
from core import fields
from core.contracts.grants import Limits
from core.fields import about


class QuotaUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Current consumption: of the last minute, of the UTC month, and the number of adapters. A rate without a limit is
    not counted and shown as 0.
    """

    requests_per_minute: Annotated[int, about("Requests of the last minute; 0 without a limit.")]
    tokens_per_minute: Annotated[int, about("Tokens of the last minute; 0 without a limit.")]
    input_tokens_per_minute: Annotated[int, about("Prompt tokens of the last minute; 0 without a limit.")]
    output_tokens_per_minute: Annotated[int, about("Generated tokens of the last minute; 0 without a limit.")]
    tokens_per_month: Annotated[int, about("Tokens of this UTC month.")]
    spend_nanos_per_month: Annotated[int, about("Nanodollars of this UTC month.")]
    gpu_seconds_per_minute: Annotated[int, about("GPU-seconds of the last minute; 0 without a limit.")]
    gpu_seconds_per_month: Annotated[int, about("GPU-seconds of this UTC month, a begun second counted.")]
    adapters: Annotated[int, fields.ADAPTERS]


class QuotaHeld(msgspec.Struct, frozen=True, kw_only=True):
    """Reservations of running requests. ``tokens``, ``spend_nanos`` and ``gpu_seconds`` also
    count against the month.
    """

    concurrent_requests: Annotated[int, fields.CONCURRENT_REQUESTS]
    kv_pages: Annotated[int, fields.KV_PAGES]
    tokens: Annotated[int, about("Tokens that running requests may use.")]
    spend_nanos: Annotated[int, about("Nanodollars that running requests may cost.")]
    gpu_seconds: Annotated[int, about("GPU-seconds that running requests may take, a begun second counted.")]


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's limits, their consumption, and the reservations of running requests."""

    limits: Annotated[Limits, fields.LIMITS]
    used: Annotated[QuotaUsed, about("Current consumption.")]
    held: Annotated[QuotaHeld, about("Reservations of running requests.")]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of one bucket, or of one group in a bucket. ``adapter_id`` and ``revision`` are "" for the base model
    itself. ``input_tokens`` includes ``cached_tokens`` and ``aborted_prefill_tokens``. ``service`` is present only when
    grouped by revision or by class of service.
    """

    start: Annotated[datetime, fields.START]
    requests: Annotated[int, fields.REQUESTS]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_seconds: Annotated[float, about("KV pages held, integrated over time; a page is 16 tokens of a sequence.")]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS] = 0
    estimated_requests: Annotated[int, fields.ESTIMATED_REQUESTS] = 0
    adapter_id: Annotated[str | None, fields.ADAPTER_ID] = None
    adapter: Annotated[str | None, fields.ADAPTER] = None
    base_model: Annotated[str | None, fields.BASE_MODEL] = None
    key_id: Annotated[str | None, fields.KEY_ID] = None
    revision: Annotated[str | None, fields.REVISION] = None
    service_class: Annotated[str | None, fields.SERVICE_CLASS] = None
    service: Annotated[
        Service | None, about("Latencies, outcomes and goals; only when grouped by revision or class of service.")
    ] = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in ``[start, end)``. Buckets without usage are omitted."""

    start: Annotated[datetime, fields.START]
    end: Annotated[datetime, fields.END]
    data: Annotated[Sequence[UsageRow], fields.DATA]
