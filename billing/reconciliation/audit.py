"""The audit on demand: what the engines counted in all, what is in the ledger and what is on invoices, each counted
independently. It is exact at rest; ``runs`` compares hour by hour, also while requests run.

Engines count a prompt with its first token. The ledger marks the prompts that were aborted before; they are the only
tokens in it that no engine has counted.

It only reads and reports. When Redis does not answer, the audit fails; the count is never taken as zero.
"""

import redis as redis_client
import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.engine_counts import read_totals
from billing.reconciliation.views import Reconciliation, TenantReconciliation
from billing.usage.stream import read_backlog
from core.contracts.usage import CHECKPOINT_TOKENS_MAX, REST
from core.errors import Unavailable
from core.money import NANOS_PER_CENT

# One statement sees one snapshot. Tokens and amounts come from the hourly sums; what is on invoices comes from their
# lines; what was earned and invoiced also comes from the ledger's transfers. Each was written on its own, so a
# difference is a defect.
_COUNTS = sa.text("""
WITH recorded AS (
    SELECT tenant_id,
           sum(input_tokens + output_tokens) AS ledger_tokens,
           sum(aborted_prefill_tokens) AS aborted_prefill_tokens,
           sum(exact_cached_tokens) AS cached_tokens,
           sum(kv_measured_page_ms) AS kv_measured_page_ms,
           sum(kv_page_ms - kv_measured_page_ms) AS kv_unmeasured_page_ms,
           sum(input_nanos + cached_input_nanos + output_nanos + kv_nanos) AS ledger_nanos,
           sum(estimated_requests) AS estimated_requests
    FROM usage_hours GROUP BY tenant_id
), adjusted AS (
    SELECT tenant_id, sum(amount_nanos) AS adjusted_nanos FROM usage_adjustments GROUP BY tenant_id
), standing AS (
    SELECT * FROM invoices i WHERE NOT EXISTS (SELECT FROM carried_periods WHERE invoice_id = i.id)
), lined AS (
    SELECT i.tenant_id,
           sum(coalesce(l.used_units, l.quantity)) FILTER (
               WHERE l.kind IN ('input_tokens', 'uncached_input_tokens', 'cached_input_tokens', 'output_tokens')
           ) AS invoiced_tokens
    FROM invoice_lines l JOIN standing i ON i.id = l.invoice_id GROUP BY i.tenant_id
), invoiced AS (
    SELECT tenant_id, sum(amount_nanos) AS invoiced_nanos FROM standing GROUP BY tenant_id
), charged AS (
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
           coalesce(ledger_tokens, 0)::bigint AS ledger_tokens,
           coalesce(aborted_prefill_tokens, 0)::bigint AS aborted_prefill_tokens,
           coalesce(cached_tokens, 0)::bigint AS cached_tokens,
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
    FULL JOIN recorded USING (tenant_id)
    FULL JOIN adjusted USING (tenant_id)
    FULL JOIN lined USING (tenant_id)
    FULL JOIN invoiced USING (tenant_id)
    FULL JOIN charged USING (tenant_id)
)
SELECT tenant_id, ledger_tokens, aborted_prefill_tokens, cached_tokens, kv_measured_page_ms, kv_unmeasured_page_ms,
       invoiced_tokens,
       ledger_tokens - invoiced_tokens AS unbilled_tokens,
       unbilled_nanos::bigint AS unbilled_nanos, invoiced_nanos, estimated_requests,
       (abs(earned - used_nanos) + abs(receivable - billed_nanos))::bigint AS drift_nanos
FROM tenants ORDER BY tenant_id
""")

# Requests whose end their gateway or replica did not see, by the final counts that their engine reported for their ids.
_EXPLAINED = sa.text("""
SELECT coalesce(sum(e.prompt_tokens + e.output_tokens - coalesce(r.tokens, 0)), 0)::bigint
FROM engine_ended_requests e LEFT JOIN LATERAL (
    SELECT sum(input_tokens - aborted_prefill_tokens + output_tokens) AS tokens, min(outcome) AS outcome
    FROM usage_records r WHERE r.request_id IN (e.request_id, e.request_id || :rest) AND r.replica_id = e.replica_id
) r ON true
WHERE r.outcome IS NULL OR r.outcome IN ('gateway_gone', 'replica_gone')
""")


def reconcile(session: Session, redis: redis_client.Redis) -> Reconciliation:
    """Compare the three counts, in total and by tenant. Raises Unavailable when Redis does not answer.

    Redis is read first: an event that is acknowledged there was committed before, so the ledger, which is read later,
    has it.
    """
    try:
        backlog = read_backlog(redis)
        counters = list(read_totals(session, redis).values())
    except redis_client.RedisError as error:
        raise Unavailable(f"Redis did not answer, so the engines' counters are unknown: {error}") from error
    explained_tokens = session.connection().execute(_EXPLAINED, {"rest": REST}).scalar_one()
    rows = session.connection().execute(_COUNTS, {"nanos_per_cent": NANOS_PER_CENT}).mappings().all()
    engine_tokens = sum(each.tenant_tokens for each in counters)
    engine_cached_tokens = sum(each.cached_prompt_tokens for each in counters)
    drift_nanos = cached_tokens = 0
    tenants = []
    for row in rows:
        fields = dict(row)
        drift_nanos += fields.pop("drift_nanos")
        cached_tokens += fields.pop("cached_tokens")
        tenants.append(TenantReconciliation(**fields))
    ledger_tokens = sum(tenant.ledger_tokens for tenant in tenants)
    invoiced_tokens = sum(tenant.invoiced_tokens for tenant in tenants)
    aborted_prefill_tokens = sum(tenant.aborted_prefill_tokens for tenant in tenants)
    drift_tokens = engine_tokens + aborted_prefill_tokens - ledger_tokens
    estimated_requests = sum(tenant.estimated_requests for tenant in tenants)
    engine_kv_page_ms = sum(each.tenant_kv_page_ms for each in counters)
    kv_measured_page_ms = sum(tenant.kv_measured_page_ms for tenant in tenants)
    return Reconciliation(
        engine_tokens=engine_tokens,
        aborted_prefill_tokens=aborted_prefill_tokens,
        ledger_tokens=ledger_tokens,
        invoiced_tokens=invoiced_tokens,
        unbilled_tokens=ledger_tokens - invoiced_tokens,
        drift_tokens=drift_tokens,
        estimated_requests=estimated_requests,
        estimated_tail_tokens_max=estimated_requests * CHECKPOINT_TOKENS_MAX,
        explained_drift_tokens=explained_tokens,
        unexplained_drift_tokens=drift_tokens - explained_tokens,
        engine_kv_page_ms=engine_kv_page_ms,
        kv_measured_page_ms=kv_measured_page_ms,
        kv_unmeasured_page_ms=sum(tenant.kv_unmeasured_page_ms for tenant in tenants),
        unreported_kv_page_ms=engine_kv_page_ms - kv_measured_page_ms,
        engine_cached_tokens=engine_cached_tokens,
        excess_cached_tokens=max(0, cached_tokens - engine_cached_tokens),
        ledger_drift_nanos=drift_nanos,
        unprocessed_events=backlog.unprocessed,
        dead_letters=backlog.dead_letters,
        per_tenant=tuple(tenants),
    )
