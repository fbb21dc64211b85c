"""Corrects the sums of usage in the database when an amendment or an adjustment is inserted.

The processes that insert an amendment then need no right to change sums. An amendment must fit the record: it takes
back what is charged, replaces what was taken back, and neither once the usage is invoiced.

Revision: 2026_11_25_1000, after 2026_11_25_0330.
"""

from alembic import op

revision = "2026_11_25_1000"
down_revision = "2026_11_25_0330"
branch_labels = None
depends_on = None

# The sums and their meaning are those of billing.usage.sums. A rest whose estimate is not invoiced was counted as one
# request with it.
AMENDMENTS = """
CREATE FUNCTION billing_count_amendment() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    r usage_records;
    estimate usage_records;
    charged usage_amendments;
    invoiced_until timestamptz;
    sign int := CASE NEW.part WHEN 'reversal' THEN -1 ELSE 1 END;
    is_rest boolean := right(NEW.request_id, 5) = '\\:rest';
    exact boolean;
BEGIN
    SELECT * INTO r FROM usage_records WHERE request_id = NEW.request_id AND tenant_id = NEW.tenant_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'amendment of % refused: tenant % has no such usage', NEW.request_id, NEW.tenant_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT billed_until INTO invoiced_until FROM subscriptions WHERE tenant_id = r.tenant_id FOR UPDATE;
    IF coalesce(r.late_from, r.settled_at) < invoiced_until THEN
        RAISE EXCEPTION 'amendment of % refused: it is invoiced; issue a credit note', NEW.request_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT * INTO charged FROM usage_amendments WHERE request_id = NEW.request_id AND position < NEW.position
        ORDER BY position DESC LIMIT 1;
    IF NEW.position <> coalesce(charged.position, 0) + 1
        OR (NEW.part = 'reversal') = (charged.part IS NOT DISTINCT FROM 'reversal') THEN
        RAISE EXCEPTION 'amendment of % refused: % is not its next part', NEW.request_id, NEW.part
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.part = 'reversal' AND (
        NEW.input_tokens, NEW.cached_tokens, NEW.aborted_prefill_tokens, NEW.output_tokens, NEW.kv_page_ms,
        NEW.input_nanos, NEW.cached_input_nanos, NEW.output_nanos, NEW.kv_nanos
    ) IS DISTINCT FROM (
        coalesce(charged.input_tokens, r.input_tokens), coalesce(charged.cached_tokens, r.cached_tokens),
        coalesce(charged.aborted_prefill_tokens, r.aborted_prefill_tokens),
        coalesce(charged.output_tokens, r.output_tokens), coalesce(charged.kv_page_ms, r.kv_page_ms),
        coalesce(charged.input_nanos, r.input_nanos), coalesce(charged.cached_input_nanos, r.cached_input_nanos),
        coalesce(charged.output_nanos, r.output_nanos), coalesce(charged.kv_nanos, r.kv_nanos)
    ) THEN
        RAISE EXCEPTION 'amendment of % refused: it takes back something else than is charged', NEW.request_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF is_rest THEN
        SELECT * INTO estimate FROM usage_records WHERE request_id = left(NEW.request_id, -5)
            AND (invoiced_until IS NULL OR coalesce(late_from, settled_at) >= invoiced_until);
    END IF;
    exact := NOT r.estimated AND NEW.aborted_prefill_tokens = 0;
    INSERT INTO usage_hours AS h (
        tenant_id, hour, late_from, key_id, base_model, adapter_id, revision_id, rank_class, price_version_id,
        service_tier, requests, estimated_requests, input_tokens, cached_tokens, exact_cached_tokens,
        aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured_page_ms, uncached_requests, cached_requests, output_requests,
        kv_requests, input_nanos, cached_input_nanos, output_nanos, kv_nanos
    ) VALUES (
        r.tenant_id, date_trunc('hour', r.settled_at, 'UTC'), coalesce(r.late_from, to_timestamp(0)), r.key_id,
        r.base_model, coalesce(r.adapter_id, ''), coalesce(r.revision_id, ''), coalesce(r.rank_class, 0),
        r.price_version_id, r.service_tier,
        sign * (NOT is_rest)::int, sign * r.estimated::int, sign * NEW.input_tokens, sign * NEW.cached_tokens,
        sign * exact::int * NEW.cached_tokens, sign * NEW.aborted_prefill_tokens, sign * NEW.output_tokens,
        sign * NEW.kv_page_ms, sign * r.kv_measured::int * NEW.kv_page_ms,
        sign * (NEW.input_tokens > NEW.cached_tokens
            AND coalesce(estimate.input_tokens, 0) <= coalesce(estimate.cached_tokens, 0))::int,
        sign * (NEW.cached_tokens > 0 AND coalesce(estimate.cached_tokens, 0) = 0)::int,
        sign * (NEW.output_tokens > 0 AND coalesce(estimate.output_tokens, 0) = 0)::int,
        sign * (NEW.kv_page_ms > 0 AND coalesce(estimate.kv_page_ms, 0) = 0)::int,
        sign * NEW.input_nanos, sign * NEW.cached_input_nanos, sign * NEW.output_nanos, sign * NEW.kv_nanos
    ) ON CONFLICT (
        tenant_id, hour, late_from, key_id, base_model, adapter_id, revision_id, rank_class, price_version_id,
        service_tier
    ) DO UPDATE SET
        requests = h.requests + excluded.requests,
        estimated_requests = h.estimated_requests + excluded.estimated_requests,
        input_tokens = h.input_tokens + excluded.input_tokens,
        cached_tokens = h.cached_tokens + excluded.cached_tokens,
        exact_cached_tokens = h.exact_cached_tokens + excluded.exact_cached_tokens,
        aborted_prefill_tokens = h.aborted_prefill_tokens + excluded.aborted_prefill_tokens,
        output_tokens = h.output_tokens + excluded.output_tokens,
        kv_page_ms = h.kv_page_ms + excluded.kv_page_ms,
        kv_measured_page_ms = h.kv_measured_page_ms + excluded.kv_measured_page_ms,
        uncached_requests = h.uncached_requests + excluded.uncached_requests,
        cached_requests = h.cached_requests + excluded.cached_requests,
        output_requests = h.output_requests + excluded.output_requests,
        kv_requests = h.kv_requests + excluded.kv_requests,
        input_nanos = h.input_nanos + excluded.input_nanos,
        cached_input_nanos = h.cached_input_nanos + excluded.cached_input_nanos,
        output_nanos = h.output_nanos + excluded.output_nanos,
        kv_nanos = h.kv_nanos + excluded.kv_nanos;
    INSERT INTO usage_days AS d (
        tenant_id, day, key_id, base_model, adapter_id, rank_class, price_version_id, service_tier, requests,
        estimated_requests, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, input_nanos,
        cached_input_nanos, output_nanos, kv_nanos
    ) VALUES (
        r.tenant_id, date_trunc('day', r.settled_at, 'UTC'), r.key_id, r.base_model, coalesce(r.adapter_id, ''),
        coalesce(r.rank_class, 0), r.price_version_id, r.service_tier, sign * (NOT is_rest)::int,
        sign * r.estimated::int, sign * NEW.input_tokens, sign * NEW.cached_tokens,
        sign * NEW.aborted_prefill_tokens, sign * NEW.output_tokens, sign * NEW.kv_page_ms, sign * NEW.input_nanos,
        sign * NEW.cached_input_nanos, sign * NEW.output_nanos, sign * NEW.kv_nanos
    ) ON CONFLICT (
        tenant_id, day, key_id, base_model, adapter_id, rank_class, price_version_id, service_tier
    ) DO UPDATE SET
        requests = d.requests + excluded.requests,
        estimated_requests = d.estimated_requests + excluded.estimated_requests,
        input_tokens = d.input_tokens + excluded.input_tokens,
        cached_tokens = d.cached_tokens + excluded.cached_tokens,
        aborted_prefill_tokens = d.aborted_prefill_tokens + excluded.aborted_prefill_tokens,
        output_tokens = d.output_tokens + excluded.output_tokens,
        kv_page_ms = d.kv_page_ms + excluded.kv_page_ms,
        input_nanos = d.input_nanos + excluded.input_nanos,
        cached_input_nanos = d.cached_input_nanos + excluded.cached_input_nanos,
        output_nanos = d.output_nanos + excluded.output_nanos,
        kv_nanos = d.kv_nanos + excluded.kv_nanos;
    PERFORM billing_add_to_month(r.tenant_id, r.settled_at, r.key_id, sign * NEW.input_tokens, sign * NEW.cached_tokens,
        sign * NEW.output_tokens, sign * NEW.amount_nanos);
    RETURN NULL;
END $$;
CREATE TRIGGER usage_amendments_counted AFTER INSERT ON usage_amendments
    FOR EACH ROW EXECUTE FUNCTION billing_count_amendment();
"""

MONTHS = """
CREATE FUNCTION billing_add_to_month(
    tenant text, at timestamptz, key text, input bigint, cached bigint, output bigint, nanos bigint
) RETURNS void LANGUAGE sql SET search_path = pg_catalog, public, pg_temp AS $$
    INSERT INTO usage_months AS m (tenant_id, month, key_id, input_tokens, cached_tokens, output_tokens, amount_nanos)
    VALUES (tenant, date_trunc('month', at, 'UTC'), key, input, cached, output, nanos)
    ON CONFLICT (tenant_id, month, key_id) DO UPDATE SET
        input_tokens = m.input_tokens + excluded.input_tokens,
        cached_tokens = m.cached_tokens + excluded.cached_tokens,
        output_tokens = m.output_tokens + excluded.output_tokens,
        amount_nanos = m.amount_nanos + excluded.amount_nanos
$$;
REVOKE ALL ON FUNCTION billing_add_to_month(text, timestamptz, text, bigint, bigint, bigint, bigint) FROM PUBLIC;
"""

# An adjustment is spending of the month in which it is made. It belongs to no key.
ADJUSTMENTS = """
CREATE FUNCTION billing_count_adjustment() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM billing_add_to_month(NEW.tenant_id, NEW.created_at, '', 0, 0, 0, NEW.usage_nanos);
    RETURN NULL;
END $$;
CREATE TRIGGER usage_adjustments_counted AFTER INSERT ON usage_adjustments
    FOR EACH ROW EXECUTE FUNCTION billing_count_adjustment();
"""

def upgrade() -> None:
    for statements in (MONTHS, AMENDMENTS, ADJUSTMENTS):
        op.execute(statements)


def downgrade() -> None:
    op.execute("DROP TRIGGER usage_adjustments_counted ON usage_adjustments")
    op.execute("DROP TRIGGER usage_amendments_counted ON usage_amendments")
    op.execute("DROP FUNCTION billing_count_adjustment(), billing_count_amendment()")
    op.execute("DROP FUNCTION billing_add_to_month(text, timestamptz, text, bigint, bigint, bigint, bigint)")
