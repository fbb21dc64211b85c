"""The totals on demand: what engines counted, what is in the ledger and what is on invoices, each counted by itself.

Engines report a request after its end, so the totals agree only at rest; ``runs`` compares hour by hour, also while
requests run. Engines count a prompt with its first token. The ledger marks the prompts that were aborted before; they
are the only tokens in it that no engine has counted. An amendment changes what is billed and not what was counted.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec
import redis as redis_client
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.prices.quantities import AMOUNT_SQL, QUANTITIES
from billing.reconciliation.differences import OF_ENGINES, Difference
from billing.reconciliation.engine_check import changed_hours, check_engines
from billing.reconciliation.models import ReconciliationDifference, ReconciliationRun
from billing.reconciliation.views import Reconciliation, TenantReconciliation
from billing.usage.stream import read_backlog
from core.contracts.replicas import OUTSIDE
from core.db import database_now
from core.errors import Unavailable
from core.money import NANOS_PER_CENT

_LATELY: Final = timedelta(days=1, hours=1)
"""Above the longest time that a run waits before it judges an hour (TENORA_BILLING_RECONCILE_SETTLE_S)."""
_OUTSIDE: Final = f"starts_with(replica_id, '{OUTSIDE}')"
"""Requests that an outside provider served: no engine counted them."""
_TOKEN_KINDS: Final = ", ".join(f"'{kind}'" for kind, each in QUANTITIES.items() if each.unit == "token")
# One statement sees one snapshot. Tokens and amounts come from the hourly sums; what is on invoices comes from their
# lines; what was earned and invoiced also comes from the ledger's transfers. Each was written on its own, so a
# difference is a defect.
_COUNTS: Final = sa.text(f"""
WITH engines AS (
    SELECT tenant_id,
           sum(prompt_tokens + output_tokens) AS engine_tokens,
           sum(cached_tokens) AS engine_cached_tokens,
           sum(kv_page_ms) AS engine_kv_page_ms
    FROM engine_usage_hours GROUP BY tenant_id
), recorded AS (
    SELECT tenant_id,
           sum(input_tokens - aborted_prefill_tokens + output_tokens) FILTER (WHERE NOT {_OUTSIDE}) AS recorded_tokens,
           sum(input_tokens + output_tokens) FILTER (WHERE {_OUTSIDE}) AS provider_tokens,
           sum(aborted_prefill_tokens) FILTER (WHERE NOT {_OUTSIDE}) AS aborted_prefill_tokens,
           sum(kv_measured_page_ms) AS kv_measured_page_ms,
           sum(kv_page_ms - kv_measured_page_ms) AS kv_unmeasured_page_ms,
           sum(estimated_requests) AS estimated_requests
    FROM usage_replica_hours GROUP BY tenant_id
), charged AS (
    SELECT tenant_id,
           sum(input_tokens + output_tokens) AS ledger_tokens,
           sum({AMOUNT_SQL}) AS ledger_nanos
    FROM usage_hours GROUP BY tenant_id
), adjusted AS (
    SELECT tenant_id, sum(amount_nanos) AS adjusted_nanos FROM usage_adjustments GROUP BY tenant_id
), standing AS (
    SELECT * FROM invoices i WHERE NOT EXISTS (SELECT FROM carried_periods WHERE invoice_id = i.id)
), lined AS (
    SELECT i.tenant_id,
           sum(coalesce(l.used_units, l.quantity)) FILTER (
               WHERE l.kind IN ({_TOKEN_KINDS})
           ) AS invoiced_tokens
    FROM invoice_lines l JOIN standing i ON i.id = l.invoice_id GROUP BY i.tenant_id
), invoiced AS (
    SELECT tenant_id, sum(amount_nanos) AS invoiced_nanos FROM standing GROUP BY tenant_id
), owed AS (
    SELECT tenant_id, sum(total_cents) AS cents FROM invoices GROUP BY tenant_id
), balances AS (
    SELECT a.tenant_id,
           coalesce(sum(e.amount_nanos) FILTER (WHERE a.kind = 'usage_unbilled'), 0) AS unbilled,
           coalesce(sum(e.amount_nanos) FILTER (
               WHERE a.kind = 'usage_unbilled' AND t.kind IN ('usage', 'adjustment', 'amendment')
           ), 0) AS earned,
           coalesce(sum(e.amount_nanos) FILTER (WHERE a.kind = 'receivable' AND t.kind = 'invoice'), 0) AS receivable
    FROM accounts a JOIN entries e ON e.account_id = a.id JOIN transfers t ON t.id = e.transfer_id
    WHERE a.kind IN ('usage_unbilled', 'receivable') GROUP BY a.tenant_id
), tenants AS (
    SELECT tenant_id,
           coalesce(engine_tokens, 0)::bigint AS engine_tokens,
           coalesce(engine_cached_tokens, 0)::bigint AS engine_cached_tokens,
           coalesce(engine_kv_page_ms, 0)::bigint AS engine_kv_page_ms,
           coalesce(recorded_tokens, 0)::bigint AS recorded_tokens,
           coalesce(ledger_tokens, 0)::bigint AS ledger_tokens,
           coalesce(provider_tokens, 0)::bigint AS provider_tokens,
           coalesce(aborted_prefill_tokens, 0)::bigint AS aborted_prefill_tokens,
           coalesce(kv_measured_page_ms, 0)::bigint AS kv_measured_page_ms,
           coalesce(kv_unmeasured_page_ms, 0)::bigint AS kv_unmeasured_page_ms,
           coalesce(invoiced_tokens, 0)::bigint AS invoiced_tokens,
           coalesce(ledger_nanos, 0) + coalesce(adjusted_nanos, 0) AS used_nanos,
           coalesce(invoiced_nanos, 0)::bigint AS invoiced_nanos,
           coalesce(estimated_requests, 0)::bigint AS estimated_requests,
           coalesce(unbilled, 0) AS unbilled_nanos,
           coalesce(earned, 0) AS earned,
           coalesce(receivable, 0) AS receivable,
           coalesce(cents, 0) * :nanos_per_cent AS billed_nanos
    FROM balances
    FULL JOIN engines USING (tenant_id)
    FULL JOIN recorded USING (tenant_id)
    FULL JOIN charged USING (tenant_id)
    FULL JOIN adjusted USING (tenant_id)
    FULL JOIN lined USING (tenant_id)
    FULL JOIN invoiced USING (tenant_id)
    FULL JOIN owed USING (tenant_id)
)
SELECT tenant_id, engine_tokens, engine_cached_tokens, engine_kv_page_ms, recorded_tokens, ledger_tokens,
       provider_tokens, aborted_prefill_tokens, kv_measured_page_ms, kv_unmeasured_page_ms, invoiced_tokens,
       ledger_tokens - invoiced_tokens AS unbilled_tokens,
       unbilled_nanos::bigint AS unbilled_nanos, invoiced_nanos, estimated_requests,
       (abs(earned - used_nanos) + abs(receivable - billed_nanos))::bigint AS drift_nanos
FROM tenants ORDER BY tenant_id
""")  # noqa: S608 - constants of the table of quantities


def reconcile(session: Session, redis: redis_client.Redis) -> Reconciliation:
    """Compare the three counts, in total and by tenant. Raises Unavailable when Redis does not answer.

    Redis is read first: an event that is acknowledged there was committed before, so the ledger, which is read later,
    has it.
    """
    try:
        backlog = read_backlog(redis)
    except redis_client.RedisError as error:
        raise Unavailable(f"Redis did not answer, so events that wait are unknown: {error}") from error
    differences = _differences(session)
    rows = _tenants(session)
    drift_tokens = _sum(rows, "engine_tokens") - _sum(rows, "recorded_tokens")
    explained_tokens = sum(
        each.explained for each in differences if each.kind == "engine_ledger" and each.unit == "token"
    )
    tenant_fields = TenantReconciliation.__struct_fields__
    return Reconciliation(
        engine_tokens=_sum(rows, "engine_tokens"),
        aborted_prefill_tokens=_sum(rows, "aborted_prefill_tokens"),
        ledger_tokens=_sum(rows, "ledger_tokens"),
        provider_tokens=_sum(rows, "provider_tokens"),
        invoiced_tokens=_sum(rows, "invoiced_tokens"),
        unbilled_tokens=_sum(rows, "unbilled_tokens"),
        drift_tokens=drift_tokens,
        estimated_requests=_sum(rows, "estimated_requests"),
        explained_drift_tokens=explained_tokens,
        unexplained_drift_tokens=drift_tokens - explained_tokens,
        engine_kv_page_ms=_sum(rows, "engine_kv_page_ms"),
        kv_measured_page_ms=_sum(rows, "kv_measured_page_ms"),
        kv_unmeasured_page_ms=_sum(rows, "kv_unmeasured_page_ms"),
        unreported_kv_page_ms=_sum(rows, "engine_kv_page_ms") - _sum(rows, "kv_measured_page_ms"),
        engine_cached_tokens=_sum(rows, "engine_cached_tokens"),
        excess_cached_tokens=-sum(each.unexplained for each in differences if each.kind == "cached_tokens"),
        ledger_drift_nanos=_sum(rows, "drift_nanos"),
        unprocessed_events=backlog.unprocessed,
        dead_letters=backlog.dead_letters,
        per_tenant=tuple(TenantReconciliation(**{name: row[name] for name in tenant_fields}) for row in rows),
    )


def _differences(session: Session) -> list[Difference]:
    """How engines and ledger differ: hours that changed lately are compared now, the others were by the last run."""
    now = database_now(session)
    last = session.exec(select(ReconciliationRun).order_by(col(ReconciliationRun.id).desc()).limit(1)).first()
    if last is None:
        return check_engines(session, None, settled_before=now).differences
    hours = changed_hours(session, last.started_at - _LATELY)
    stored = session.exec(
        select(ReconciliationDifference).where(
            ReconciliationDifference.run_id == last.id,
            col(ReconciliationDifference.kind).in_(OF_ENGINES),
            col(ReconciliationDifference.hour).not_in(hours),
        )
    )
    return [
        *check_engines(session, hours, settled_before=now).differences,
        *(msgspec.convert(each, Difference, from_attributes=True) for each in stored),
    ]


def ledger_drift_nanos(session: Session) -> int:
    """Nanodollars by which transfers differ from sums of usage and from invoices."""
    return _sum(_tenants(session), "drift_nanos")


def _tenants(session: Session) -> Sequence[sa.RowMapping]:
    return session.connection().execute(_COUNTS, {"nanos_per_cent": NANOS_PER_CENT}).mappings().all()


def _sum(rows: Sequence[sa.RowMapping], name: str) -> int:
    return sum(row[name] for row in rows)
