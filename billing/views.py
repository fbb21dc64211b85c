"""The values that billing shows to other packages: frozen, with units in their names. Tables stay inside."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

from billing.prices.card import PriceCard, ResourceLineKind
from core import fields
from core.contracts.grants import ServiceTier
from core.fields import about

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
    """How requests were served, as their callers saw it. The percentiles begin at the end of reading a request; those
    to the end are of requests with outcome done. ``tiers`` is as far as the engine reported it.
    """

    first_token_ms_p50: Annotated[
        int | None, about("Median milliseconds from a streamed request to its first token; null without one.")
    ]
    first_token_ms_p99: Annotated[int | None, fields.DURATION_MS_P99]
    duration_ms_p50: Annotated[
        int | None, about("Median milliseconds from a request to the end of its answer; null without one.")
    ]
    duration_ms_p99: Annotated[int | None, fields.DURATION_MS_P99]
    stall_ms: Annotated[int, about("Milliseconds for which loads of the adapter delayed all running requests.")]
    outcomes: Annotated[dict[str, int], about("Requests by how they ended.")]
    tiers: Annotated[dict[str, int], about("Requests by the adapter's place on arrival: slot, memory, disk or store.")]


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
    """

    id: Annotated[str, fields.ID]
    number: Annotated[str, fields.NUMBER_WITHOUT_GAPS]
    tenant_id: Annotated[str, fields.TENANT_ID]
    kind: Annotated[InvoiceKind, about("Why it was made: period, threshold, final or supplementary.")]
    period_start: Annotated[datetime, fields.START]
    period_end: Annotated[datetime, fields.END]
    status: Annotated[InvoiceStatus, about("open, paid, void or uncollectible.")]
    currency: Annotated[str, fields.CURRENCY]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    net_cents: Annotated[int, fields.NET_CENTS]
    tax_cents: Annotated[int, fields.TAX_CENTS]
    total_cents: Annotated[int, fields.TOTAL_CENTS]
    paid_cents: Annotated[int, about("Cents of the total that are paid.")]
    credited_cents: Annotated[int, about("Cents of the total that credit notes have taken back.")]
    amount_due_cents: Annotated[int, about("Cents still due; of an uncollectible invoice, cents written off.")]
    due_on: Annotated[date | None, about("Last day to pay, in UTC; null on invoices from before there were terms.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class InvoiceLineView(msgspec.Struct, frozen=True, kw_only=True):
    """``quantity`` units at ``unit_price_nanos`` each are ``amount_nanos``; page-seconds are cut below one nanodollar
    in each request. ``amount_cents`` is the line's share of the invoice's total. A line of a tier is of all adapters
    together, and has no ``base_model`` if it is of all models. Of flex usage, ``unit_price_nanos`` is what the batch
    factor leaves of ``list_price_nanos``.

    Lines of the unit ``amount`` are no usage and have no model: fees, prorations, discounts, commitments, what is
    carried over, and usage of an earlier period that cost less than a cent, or whose invoice was voided.
    """

    id: Annotated[str, fields.ID]
    kind: Annotated[LineKind, fields.LINE_KIND]
    base_model: Annotated[str | None, fields.BASE_MODEL]
    rank_class: Annotated[int | None, about("Rank class whose price it is; null for the price of all.")]
    adapter_id: Annotated[str | None, fields.ADAPTER_ID]
    adapter_name: Annotated[str | None, about("Name of the adapter when the invoice was made.")]
    price_version_id: Annotated[str | None, about("Id of the price version; null without one, as for discounts.")]
    late_for: Annotated[
        datetime | None, about("Start of the month in which late usage settled; null for usage of the period itself.")
    ]
    unit: Annotated[LineUnit, about("What one unit is: token, page_second or package.")]
    quantity: Annotated[Decimal, fields.QUANTITY]
    unit_price_nanos: Annotated[int, fields.UNIT_PRICE_NANOS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    amount_cents: Annotated[int, fields.AMOUNT_CENTS]
    request_count: Annotated[int | None, about("Requests with any of it.")]
    tier: Annotated[int | None, about("Number of the price tier, from 1; null where the price has none.")]
    used_units: Annotated[Decimal | None, about("Units used, where quantity counts packages.")]
    description: Annotated[str | None, about("What the line is, where its kind does not say; null otherwise.")] = None
    source_id: Annotated[str | None, about("Id of the discount or coupon; null for other lines.")] = None
    covers_from: Annotated[datetime | None, about("Start of the time that a fee is for; null for usage.")] = None
    covers_until: Annotated[datetime | None, about("End of the time that a fee is for, exclusive; null for usage.")] = (
        None
    )
    tax_cents: Annotated[int, fields.TAX_CENTS] = 0
    service_tier: Annotated[ServiceTier | None, fields.SERVICE_TIER] = None
    list_price_nanos: Annotated[
        int | None, about("Price of a unit before the batch factor, in nanodollars; null without a batch discount.")
    ] = None
    batch_discount_nanos: Annotated[
        int, about("What the batch factor takes off the line's list price, in nanodollars; 0 without one.")
    ] = 0


class InvoiceDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice with its lines, by model and price, in print order."""

    invoice: InvoiceView
    lines: tuple[InvoiceLineView, ...]


class SimulatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of usage cost, and what it would cost. A line of tiers over all adapters has no ``adapter_id``."""

    kind: Annotated[LineKind, fields.LINE_KIND]
    base_model: Annotated[str | None, fields.BASE_MODEL]
    adapter_id: Annotated[str | None, fields.ADAPTER_ID]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    simulated_nanos: Annotated[int, fields.SIMULATED_NANOS]


class SimulatedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's usage of a period cost, and what it would cost on another price card."""

    tenant_id: Annotated[str, fields.TENANT_ID]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    simulated_nanos: Annotated[int, fields.SIMULATED_NANOS]
    lines: Annotated[tuple[SimulatedLine, ...], fields.LINES]


class TenantReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share of a reconciliation; engines do not know tenants, so it starts at the ledger."""

    tenant_id: Annotated[str, fields.TENANT_ID]
    ledger_tokens: Annotated[int, fields.LEDGER_TOKENS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    kv_measured_page_ms: Annotated[int, fields.KV_MEASURED_PAGE_MS]
    kv_unmeasured_page_ms: Annotated[int, fields.KV_UNMEASURED_PAGE_MS]
    invoiced_tokens: Annotated[int, fields.INVOICED_TOKENS]
    unbilled_tokens: Annotated[int, fields.UNBILLED_TOKENS]
    unbilled_nanos: Annotated[int, fields.UNBILLED_NANOS]
    invoiced_nanos: Annotated[int, fields.INVOICED_NANOS]
    estimated_requests: Annotated[int, fields.ESTIMATED_REQUESTS]


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

    engine_tokens: Annotated[int, about("Tokens of tenants that the engines counted.")]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    ledger_tokens: Annotated[int, fields.LEDGER_TOKENS]
    invoiced_tokens: Annotated[int, fields.INVOICED_TOKENS]
    unbilled_tokens: Annotated[int, fields.UNBILLED_TOKENS]
    drift_tokens: Annotated[int, about("Tokens counted by engines, plus aborted prefills, minus tokens in the ledger.")]
    estimated_requests: Annotated[int, fields.ESTIMATED_REQUESTS]
    estimated_tail_tokens_max: Annotated[int, about("Tokens that estimated requests may leave uncharged at most.")]
    explained_drift_tokens: Annotated[
        int, about("Tokens of the drift that engines report by ids of requests whose end no gateway saw.")
    ]
    unexplained_drift_tokens: Annotated[int, about("Tokens of the drift that estimated requests do not explain.")]
    engine_kv_page_ms: Annotated[int, fields.ENGINE_KV_PAGE_MS]
    kv_measured_page_ms: Annotated[int, fields.KV_MEASURED_PAGE_MS]
    kv_unmeasured_page_ms: Annotated[int, fields.KV_UNMEASURED_PAGE_MS]
    unreported_kv_page_ms: Annotated[int, about("KV page-milliseconds that engines measured and the ledger lacks.")]
    engine_cached_tokens: Annotated[int, about("Prompt tokens that the engines counted as cached.")]
    excess_cached_tokens: Annotated[int, about("Tokens charged as cached beyond what the engines counted; must be 0.")]
    ledger_drift_nanos: Annotated[int, about("Nanodollars between the ledger's entries and records; must be 0.")]
    unprocessed_events: Annotated[int, about("Usage events that are not recorded yet.")]
    dead_letters: Annotated[int, about("Usage events that could not be recorded and wait for an operator.")]
    per_tenant: Annotated[tuple[TenantReconciliation, ...], about("The same by tenant.")]


class ReconciliationDifferenceView(msgspec.Struct, frozen=True, kw_only=True):
    """Two counts that should be equal: ``expected`` = ``found`` + ``explained`` + ``unexplained``, in ``unit``."""

    kind: Annotated[str, about("What was compared.")]
    subject: Annotated[str, about("What differs: a replica, a tenant, a table, a transfer or an invoice.")]
    unit: Annotated[str, about("token, page_millisecond, nanodollar, cent or document.")]
    expected: Annotated[
        int, about("The earlier count, in `unit`: the engine's before the ledger's, the records' before their sums.")
    ]
    found: Annotated[int, about("The later count, in `unit`.")]
    explained: Annotated[int, about("Part of the difference that requests explain, each by its id; in `unit`.")]
    unexplained: Annotated[int, about("expected minus found minus explained, in `unit`.")]
    replica_id: Annotated[str | None, about("Id of the replica; null where no single one is.")]
    tenant_id: Annotated[str | None, fields.TENANT_ID]
    base_model: Annotated[str | None, fields.BASE_MODEL]
    hour: Annotated[
        datetime | None,
        about("Start of the UTC hour in which the requests' ids were made, or in which the usage settled."),
    ]
    request_ids: Annotated[tuple[str, ...], about("Requests that explain a part of the difference, at most 100.")]


class ReconciliationRunView(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of one run."""

    id: Annotated[str, fields.ID]
    mode: Annotated[str, about("changed: what changed since the last run was read; full: everything.")]
    started_at: Annotated[datetime, about("When it began.")]
    finished_at: Annotated[datetime, fields.FINISHED_AT]
    changed_since: Annotated[
        datetime | None, about("The run read what had changed since then; null where it read everything.")
    ]
    hours: Annotated[int, about("Hours that were read.")]
    engine_tokens: Annotated[int, about("Tokens that engines counted in the hours that were read.")]
    ledger_tokens: Annotated[int, about("Tokens in the ledger of the hours that were read.")]
    explained_tokens: Annotated[int, about("Tokens that requests explain, each by its id.")]
    unexplained_tokens: Annotated[int, about("Tokens that nothing explains, summed without signs.")]
    engine_kv_page_ms: Annotated[int, fields.ENGINE_KV_PAGE_MS]
    ledger_kv_page_ms: Annotated[int, fields.KV_MEASURED_PAGE_MS]
    explained_kv_page_ms: Annotated[int, about("KV page-milliseconds that requests explain, each by its id.")]
    unexplained_kv_page_ms: Annotated[int, about("KV page-milliseconds that nothing explains, summed without signs.")]
    unexplained_nanos: Annotated[int, about("Nanodollars that nothing explains, summed without signs.")]
    differing: Annotated[int, about("Differences that are not explained. Anything but 0 is an alarm.")]


class ReconciliationRunDetail(ReconciliationRunView, frozen=True, kw_only=True):
    """A run with its differences, those that are explained too."""

    differences: Annotated[tuple[ReconciliationDifferenceView, ...], about("All that differed, explained or not.")]


class AmendmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an amendment of usage: the ``reversal`` of what was charged, or its ``replacement``. The reversal's
    quantities and amount are taken back.
    """

    part: Annotated[str, about("reversal of what was charged, or its replacement.")]
    transfer_id: Annotated[str, fields.TRANSFER_ID]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    reason: Annotated[str, about("Why.")]
    actor: Annotated[str, about("Id of the admin's key that did it.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class AmendedUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What one request is charged for now, all 0 when it is voided. ``transfer_id`` is of the record."""

    request_id: Annotated[str, fields.REQUEST_ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    settled_at: Annotated[datetime, fields.SETTLED_AT]
    transfer_id: Annotated[str, fields.TRANSFER_ID]
    recorded_nanos: Annotated[int, fields.RECORDED_NANOS]
    charged_nanos: Annotated[int, fields.CHARGED_NANOS]
    voided: Annotated[bool, about("Whether the request is charged nothing.")]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amendments: Annotated[tuple[AmendmentView, ...], about("Amendments of the usage, oldest first.")]
