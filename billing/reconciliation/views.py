"""The values that show reconciliations to other packages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from core import fields
from core.fields import about


class TenantReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share of a reconciliation. What an engine counted for more tenants than it can list has the tenant
    ``""``.
    """

    tenant_id: Annotated[str, fields.TENANT_ID]
    engine_tokens: Annotated[int, about("Tokens that the engines counted.")]
    ledger_tokens: Annotated[int, fields.LEDGER_TOKENS]
    provider_tokens: Annotated[int, fields.PROVIDER_TOKENS]
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
    which engines do not count, minus the tokens of the records in the ledger, without amendments and without
    ``provider_tokens``, which no engine counted. It is meaningful only when ``unprocessed_events`` and ``dead_letters``
    are 0 and no request has run for three seconds: engines report a request within two seconds after its end.
    ``ledger_drift_nanos`` must always be 0. So must ``excess_cached_tokens``: tokens of exact events that were charged
    at the cached price and that their engine did not take from its cache.

    A request whose gateway died is charged by its last checkpoint. What its engine produced after that is not charged
    and stays in the drift; requests that ran when their engine died are charged, and no engine has reported them.
    ``explained_drift_tokens`` is what the ids of such requests explain, ``unexplained_drift_tokens`` the remainder.
    Page-time is compared with what engines measured: ``unreported_kv_page_ms`` is what they held beyond the last report
    of aborted answers.
    """

    engine_tokens: Annotated[int, about("Tokens of tenants that the engines counted.")]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    ledger_tokens: Annotated[int, fields.LEDGER_TOKENS]
    provider_tokens: Annotated[int, fields.PROVIDER_TOKENS]
    invoiced_tokens: Annotated[int, fields.INVOICED_TOKENS]
    unbilled_tokens: Annotated[int, fields.UNBILLED_TOKENS]
    drift_tokens: Annotated[
        int, about("Tokens counted by engines, plus aborted prefills, minus tokens of the records.")
    ]
    estimated_requests: Annotated[int, fields.ESTIMATED_REQUESTS]
    explained_drift_tokens: Annotated[
        int, about("Tokens of the drift that requests explain by their ids: their gateway or engine died.")
    ]
    unexplained_drift_tokens: Annotated[int, about("Tokens of the drift that no request explains.")]
    engine_kv_page_ms: Annotated[int, fields.ENGINE_KV_PAGE_MS]
    kv_measured_page_ms: Annotated[int, fields.KV_MEASURED_PAGE_MS]
    kv_unmeasured_page_ms: Annotated[int, fields.KV_UNMEASURED_PAGE_MS]
    unreported_kv_page_ms: Annotated[int, about("KV page-milliseconds that engines measured and the ledger lacks.")]
    engine_cached_tokens: Annotated[int, about("Prompt tokens that the engines counted as cached.")]
    excess_cached_tokens: Annotated[
        int, about("Tokens charged as cached that no engine took from its cache; must be 0.")
    ]
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


class LedgerAccountView(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a tenant. Debits are positive: what the tenant owes is, and what it is owed is negative."""

    kind: Annotated[str, about("What the account holds, such as receivable, usage_unbilled or credits_paid.")]
    balance_nanos: Annotated[int, about("Sum of its entries, in nanodollars.")]


class LedgerLegView(msgspec.Struct, frozen=True, kw_only=True):
    """What a transfer moves on one account."""

    account: Annotated[str, about("Kind of the tenant's or the platform's account; other_tenants for those of others.")]
    amount_nanos: Annotated[int, about("Nanodollars: a debit is positive, a credit negative.")]


class LedgerTransferView(msgspec.Struct, frozen=True, kw_only=True):
    """One movement of value. Its legs sum to zero."""

    id: Annotated[str, fields.ID]
    kind: Annotated[str, about("What it is for, such as usage, invoice, payment or credit_grant.")]
    invoice_id: Annotated[str | None, about("Id of the invoice that it finalizes; null for other kinds.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
    legs: Annotated[Sequence[LedgerLegView], about("What it moves, by account.")]
