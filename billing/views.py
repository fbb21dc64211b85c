"""The values that billing shows to other packages: frozen, with units in their names. Tables stay inside."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal

import msgspec

from billing.prices.card import PriceCard, ResourceLineKind
from core.contracts.grants import ServiceTier

UsageLineKind = Literal["uncached_input_tokens", "cached_input_tokens", "output_tokens", "kv_page_seconds"]
LineKind = (
    UsageLineKind | ResourceLineKind | Literal["base_fee", "proration", "discount", "coupon", "commitment", "carried"]
)
LINE_KINDS_IN_WORDS: Final[Mapping[LineKind, str]] = {
    "uncached_input_tokens": "Prompt tokens",
    "cached_input_tokens": "Cached prompt tokens",
    "output_tokens": "Generated tokens",
    "kv_page_seconds": "KV page-seconds",
    "adapter_storage": "Adapter storage",
    "pinned_slots": "Pinned slots",
    "cold_loads": "Cold loads",
    "base_fee": "Base fee",
    "proration": "Proration",
    "discount": "Discount",
    "coupon": "Coupon",
    "commitment": "Commitment",
    "carried": "Carried over",
}
"""What a line is called on every document and at Stripe."""
LineUnit = Literal["token", "page_second", "package", "gb_hour", "slot_hour", "load", "amount"]
InvoiceKind = Literal["period", "threshold", "final", "supplementary"]
InvoiceStatus = Literal["finalized", "open", "paid", "void", "uncollectible"]
Bucket = Literal["1m", "1h", "1d"]
GroupBy = Literal["adapter", "base_model", "key", "revision"]


class PriceView(msgspec.Struct, frozen=True, kw_only=True):
    """A price version of a plan. ``effective_from`` of a plan's first version is the epoch."""

    id: str
    plan_id: str
    card: PriceCard
    effective_from: datetime
    created_at: datetime


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How requests were served, as their callers saw it. The percentiles are milliseconds from the end of reading a
    request to its first token (streamed requests) and to its end (requests with outcome done). ``outcomes`` counts
    requests by how they ended, ``tiers`` by where the adapter was when they arrived, as far as the engine reported it.
    """

    first_token_ms_p50: int | None
    first_token_ms_p99: int | None
    duration_ms_p50: int | None
    duration_ms_p99: int | None
    stall_ms: int
    outcomes: dict[str, int]
    tiers: dict[str, int]


class UsageBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Usage settled in ``[start, start + bucket)``. Only the ids that were grouped by are set; ``adapter_id`` None
    under ``group_by="adapter"`` is the base model itself. ``input_tokens`` includes cached ones and
    ``aborted_prefill_tokens``, which are prompt tokens of requests that were aborted before their first token.
    ``estimated_requests`` are those whose gateway died, charged by their last checkpoint. ``service`` is set when
    grouped by revision.
    """

    start: datetime
    requests: int
    estimated_requests: int
    input_tokens: int
    cached_tokens: int
    aborted_prefill_tokens: int
    output_tokens: int
    kv_page_ms: int
    amount_nanos: int
    adapter_id: str | None = None
    base_model: str | None = None
    key_id: str | None = None
    revision_id: str | None = None
    service: Service | None = None


class InvoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice without its lines. ``amount_nanos`` is the exact sum of the lines; ``net_cents`` is charged for it
    after promotional credits, and ``total_cents`` is that and the tax. ``kind`` says why it was made: a period has
    ended, the tenant reached its threshold, left, or used something that was recorded after its last invoice.
    ``due_on`` is the last day to pay, in UTC.
    """

    id: str
    number: str
    tenant_id: str
    kind: InvoiceKind
    period_start: datetime
    period_end: datetime
    status: InvoiceStatus
    currency: str
    amount_nanos: int
    net_cents: int
    tax_cents: int
    total_cents: int
    paid_cents: int
    credited_cents: int
    amount_due_cents: int
    due_on: date | None
    created_at: datetime


class InvoiceLineView(msgspec.Struct, frozen=True, kw_only=True):
    """``quantity`` units at ``unit_price_nanos`` each are ``amount_nanos``; page-seconds are cut below one nanodollar
    in each request. ``amount_cents`` is the line's share of the invoice's total. ``adapter_id`` None is the base model
    itself. ``late_for`` is the start of the month of late usage. ``request_count`` counts requests with any of it.
    A line of a tier, counted from 1, is of all adapters together, and has no ``base_model`` if it is of all models.
    ``used_units`` are what was used where ``quantity`` counts packages. ``tax_cents`` is the line's share of the taxes.
    A line of flex usage has its ``service_tier``, and the ``list_price_nanos`` of which ``unit_price_nanos`` is what
    the batch factor leaves; ``batch_discount_nanos`` is what the whole line saves.

    Lines of the unit ``amount`` are no usage: fees, prorations, discounts, commitments and what is carried over. They
    have no model. ``description`` explains them, ``source_id`` names the discount or coupon, and a fee is for the time
    from ``covers_from`` until ``covers_until``. So is usage of an earlier period that cost less than a cent, or
    whose invoice was voided.
    """

    id: str
    kind: LineKind
    base_model: str | None
    rank_class: int | None
    adapter_id: str | None
    adapter_name: str | None
    price_version_id: str | None
    late_for: datetime | None
    unit: LineUnit
    quantity: Decimal
    unit_price_nanos: int
    amount_nanos: int
    amount_cents: int
    request_count: int | None
    tier: int | None
    used_units: Decimal | None
    description: str | None = None
    source_id: str | None = None
    covers_from: datetime | None = None
    covers_until: datetime | None = None
    tax_cents: int = 0
    service_tier: ServiceTier | None = None
    list_price_nanos: int | None = None
    batch_discount_nanos: int = 0


class InvoiceDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice with its lines, by model and price, in print order."""

    invoice: InvoiceView
    lines: tuple[InvoiceLineView, ...]


class SimulatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of usage cost, and what it would cost. A line of tiers over all adapters has no ``adapter_id``."""

    kind: LineKind
    base_model: str | None
    adapter_id: str | None
    amount_nanos: int
    simulated_nanos: int


class SimulatedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's usage of a period cost, and what it would cost on another price card."""

    tenant_id: str
    amount_nanos: int
    simulated_nanos: int
    lines: tuple[SimulatedLine, ...]


class TenantReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share of a reconciliation; engines do not know tenants, so it starts at the ledger."""

    tenant_id: str
    ledger_tokens: int
    aborted_prefill_tokens: int
    kv_measured_page_ms: int
    kv_unmeasured_page_ms: int
    invoiced_tokens: int
    unbilled_tokens: int
    unbilled_nanos: int
    invoiced_nanos: int
    estimated_requests: int


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The same tokens counted in three places. ``drift_tokens`` is ``engine_tokens`` plus ``aborted_prefill_tokens``,
    which engines do not count, minus ``ledger_tokens``. It is meaningful only when ``unprocessed_events`` and
    ``dead_letters`` are 0, no request is running, and the agents' last report (one per second) is newer than the last
    request. ``ledger_drift_nanos`` must always be 0. So must ``excess_cached_tokens``: tokens of exact events that were
    charged at the cached price beyond the ``engine_cached_tokens``.

    A request whose gateway died is charged by its last checkpoint. What its engine produced after that is not charged
    and stays in the drift. ``explained_drift_tokens`` is that part, added up from what engines reported for the ids of
    such requests; ``unexplained_drift_tokens`` is the rest of the drift. Page-time is compared with what engines
    measured: ``unreported_kv_page_ms`` is what they held beyond the last report of aborted answers, or still hold.
    """

    engine_tokens: int
    aborted_prefill_tokens: int
    ledger_tokens: int
    invoiced_tokens: int
    unbilled_tokens: int
    drift_tokens: int
    estimated_requests: int
    estimated_tail_tokens_max: int
    explained_drift_tokens: int
    unexplained_drift_tokens: int
    engine_kv_page_ms: int
    kv_measured_page_ms: int
    kv_unmeasured_page_ms: int
    unreported_kv_page_ms: int
    engine_cached_tokens: int
    excess_cached_tokens: int
    ledger_drift_nanos: int
    unprocessed_events: int
    dead_letters: int
    per_tenant: tuple[TenantReconciliation, ...]


class ReconciliationDifferenceView(msgspec.Struct, frozen=True, kw_only=True):
    """Two counts that should be equal: ``expected`` = ``found`` + ``explained`` + ``unexplained``, in ``unit``.
    ``request_ids`` are requests that explain a part, at most 100.
    """

    kind: str
    subject: str
    unit: str
    expected: int
    found: int
    explained: int
    unexplained: int
    replica_id: str | None
    tenant_id: str | None
    base_model: str | None
    hour: datetime | None
    request_ids: tuple[str, ...]


class ReconciliationRunView(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of one run. Tokens and page-milliseconds are those of the hours that were read; the
    ``unexplained_…`` are sums without signs. ``differing`` counts the differences that are not explained.
    """

    id: str
    mode: str
    started_at: datetime
    finished_at: datetime
    changed_since: datetime | None
    hours: int
    engine_tokens: int
    ledger_tokens: int
    explained_tokens: int
    unexplained_tokens: int
    engine_kv_page_ms: int
    ledger_kv_page_ms: int
    explained_kv_page_ms: int
    unexplained_kv_page_ms: int
    unexplained_nanos: int
    differing: int


class ReconciliationRunDetail(ReconciliationRunView, frozen=True, kw_only=True):
    """A run with its differences, those that are explained too."""

    differences: tuple[ReconciliationDifferenceView, ...]


class AmendmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an amendment of usage: the ``reversal`` of what was charged, or its ``replacement``. The reversal's
    quantities and amount are taken back.
    """

    part: str
    transfer_id: str
    input_tokens: int
    cached_tokens: int
    aborted_prefill_tokens: int
    output_tokens: int
    kv_page_ms: int
    amount_nanos: int
    reason: str
    actor: str
    created_at: datetime


class AmendedUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What one request is charged for now, all 0 when it is voided. ``recorded_nanos`` and ``transfer_id`` are of the
    record, which never changes; ``amendments`` are in the order in which they were made.
    """

    request_id: str
    tenant_id: str
    settled_at: datetime
    transfer_id: str
    recorded_nanos: int
    charged_nanos: int
    voided: bool
    input_tokens: int
    cached_tokens: int
    aborted_prefill_tokens: int
    output_tokens: int
    kv_page_ms: int
    amendments: tuple[AmendmentView, ...]
