"""Wire types of the usage room."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from billing.views import Service
from core.contracts.grants import Limits


class QuotaUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What counts against the limits now: the last minute's, the UTC month's, and the adapters kept. A minute without a
    limit is not counted, and 0.
    """

    requests_per_minute: int
    tokens_per_minute: int
    input_tokens_per_minute: int
    output_tokens_per_minute: int
    tokens_per_month: int
    spend_nanos_per_month: int
    adapters: int


class QuotaHeld(msgspec.Struct, frozen=True, kw_only=True):
    """What requests in work hold until they end. ``tokens`` and ``spend_nanos`` also count against the month."""

    concurrent_requests: int
    kv_pages: int
    tokens: int
    spend_nanos: int


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's limits, with what is used and what is held of them."""

    limits: Limits
    used: QuotaUsed
    held: QuotaHeld


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bucket of usage, and of one group where it was grouped. ``adapter`` is the adapter's name;
    ``adapter_id`` and ``revision`` are "" for the base model itself. ``input_tokens`` includes ``cached_tokens``.
    ``estimated_requests`` are those whose gateway died, charged by its last checkpoint; ``service`` says how requests
    were served, where they are grouped by revision.
    """

    start: datetime
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_seconds: float
    amount_nanos: int
    estimated_requests: int = 0
    adapter_id: str | None = None
    adapter: str | None = None
    base_model: str | None = None
    key_id: str | None = None
    revision: str | None = None
    service: Service | None = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in ``[start, end)``; buckets without any are left out."""

    start: datetime
    end: datetime
    data: Sequence[UsageRow]
