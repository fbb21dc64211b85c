"""Wire types of the usage room."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from billing.views import Service
from core.contracts.grants import Limits


class QuotaUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Current consumption: of the last minute, of the UTC month, and the number of adapters. A rate without a limit is
    not counted and shown as 0.
    """

    requests_per_minute: int
    tokens_per_minute: int
    input_tokens_per_minute: int
    output_tokens_per_minute: int
    tokens_per_month: int
    spend_nanos_per_month: int
    adapters: int


class QuotaHeld(msgspec.Struct, frozen=True, kw_only=True):
    """Reservations of running requests. ``tokens`` and ``spend_nanos`` also count against the month."""

    concurrent_requests: int
    kv_pages: int
    tokens: int
    spend_nanos: int


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's limits, their consumption, and the reservations of running requests."""

    limits: Limits
    used: QuotaUsed
    held: QuotaHeld


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of one bucket, or of one group in a bucket. ``adapter`` is the adapter's name; ``adapter_id`` and
    ``revision`` are "" for the base model itself. ``input_tokens`` includes ``cached_tokens`` and
    ``aborted_prefill_tokens``, the prompt tokens of requests that were aborted before their first token.
    ``estimated_requests`` counts requests whose gateway died; they are charged by their last checkpoint. ``service``
    has latencies and outcomes, and is present only when grouped by revision.
    """

    start: datetime
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_seconds: float
    amount_nanos: int
    aborted_prefill_tokens: int = 0
    estimated_requests: int = 0
    adapter_id: str | None = None
    adapter: str | None = None
    base_model: str | None = None
    key_id: str | None = None
    revision: str | None = None
    service: Service | None = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in ``[start, end)``. Buckets without usage are omitted."""

    start: datetime
    end: datetime
    data: Sequence[UsageRow]
