CREATE TABLE usage_days (
    tenant_id varchar NOT NULL,
    day timestamptz NOT NULL,
    key_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar NOT NULL,
    rank_class integer NOT NULL,
    price_version_id varchar NOT NULL,
    requests bigint DEFAULT 0 NOT NULL,
    estimated_requests bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    cached_tokens bigint DEFAULT 0 NOT NULL,
    aborted_prefill_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    kv_page_ms bigint DEFAULT 0 NOT NULL,
    input_nanos bigint DEFAULT 0 NOT NULL,
    cached_input_nanos bigint DEFAULT 0 NOT NULL,
    output_nanos bigint DEFAULT 0 NOT NULL,
    kv_nanos bigint DEFAULT 0 NOT NULL,
    service_tier varchar DEFAULT 'default' NOT NULL,
    CONSTRAINT pk_usage_days PRIMARY KEY (tenant_id, day, key_id, base_model, adapter_id, rank_class, price_version_id, service_tier)
);

CREATE TABLE usage_hours (
    tenant_id varchar NOT NULL,
    hour timestamptz NOT NULL,
    late_from timestamptz NOT NULL,
    key_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar NOT NULL,
    revision_id varchar NOT NULL,
    rank_class integer NOT NULL,
    price_version_id varchar NOT NULL,
    requests bigint DEFAULT 0 NOT NULL,
    estimated_requests bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    cached_tokens bigint DEFAULT 0 NOT NULL,
    aborted_prefill_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    kv_page_ms bigint DEFAULT 0 NOT NULL,
    uncached_requests bigint DEFAULT 0 NOT NULL,
    cached_requests bigint DEFAULT 0 NOT NULL,
    output_requests bigint DEFAULT 0 NOT NULL,
    kv_requests bigint DEFAULT 0 NOT NULL,
    input_nanos bigint DEFAULT 0 NOT NULL,
    cached_input_nanos bigint DEFAULT 0 NOT NULL,
    output_nanos bigint DEFAULT 0 NOT NULL,
    kv_nanos bigint DEFAULT 0 NOT NULL,
    service_tier varchar DEFAULT 'default' NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (tenant_id, hour, late_from, key_id, base_model, adapter_id, revision_id, rank_class, price_version_id, service_tier)
);
CREATE INDEX ix_usage_hours_late ON usage_hours (tenant_id, late_from) WHERE late_from > '1970-01-01T00:00:00Z'::timestamptz;

CREATE TABLE usage_months (
    tenant_id varchar NOT NULL,
    month timestamptz NOT NULL,
    key_id varchar NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    cached_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    amount_nanos bigint DEFAULT 0 NOT NULL,
    gpu_us bigint DEFAULT 0 NOT NULL,
    CONSTRAINT pk_usage_months PRIMARY KEY (tenant_id, month, key_id)
);

CREATE TABLE usage_replica_hours (
    hour timestamptz NOT NULL,
    replica_id varchar NOT NULL,
    tenant_id varchar NOT NULL,
    base_model varchar NOT NULL,
    requests bigint DEFAULT 0 NOT NULL,
    estimated_requests bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    exact_cached_tokens bigint DEFAULT 0 NOT NULL,
    aborted_prefill_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    kv_page_ms bigint DEFAULT 0 NOT NULL,
    kv_measured_page_ms bigint DEFAULT 0 NOT NULL,
    kv_unmeasured_requests bigint DEFAULT 0 NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_usage_replica_hours PRIMARY KEY (hour, replica_id, tenant_id, base_model)
);
CREATE INDEX ix_usage_replica_hours_changed_at ON usage_replica_hours (changed_at);

CREATE TABLE provider_costs (
    request_id varchar COLLATE "C" NOT NULL CONSTRAINT pk_provider_costs PRIMARY KEY,
    tenant_id varchar NOT NULL,
    base_model varchar NOT NULL,
    price_version_id varchar
        CONSTRAINT fk_provider_costs_price_version_id_price_versions REFERENCES price_versions (id),
    settled_at timestamptz NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_nanos bigint NOT NULL,
    counted_here boolean NOT NULL,
    CONSTRAINT ck_provider_costs_cost_not_negative CHECK (cost_nanos >= 0)
);
CREATE INDEX ix_provider_costs_settled_at ON provider_costs (settled_at);

CREATE TABLE usage_amendments (
    request_id varchar COLLATE "C" NOT NULL,
    position integer NOT NULL,
    part varchar NOT NULL,
    tenant_id varchar NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    aborted_prefill_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    input_nanos bigint NOT NULL,
    cached_input_nanos bigint NOT NULL,
    output_nanos bigint NOT NULL,
    kv_nanos bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    transfer_id varchar NOT NULL
        CONSTRAINT uq_usage_amendments_transfer_id UNIQUE CONSTRAINT fk_usage_amendments_transfer_id_transfers REFERENCES transfers (id),
    reason varchar NOT NULL,
    actor varchar NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_usage_amendments PRIMARY KEY (request_id, position),
    CONSTRAINT ck_usage_amendments_part_known CHECK (part IN ('reversal', 'replacement')),
    CONSTRAINT ck_usage_amendments_position_positive CHECK (position > 0),
    CONSTRAINT ck_usage_amendments_quantities_possible CHECK (
        input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens
        AND aborted_prefill_tokens BETWEEN 0 AND input_tokens),
    CONSTRAINT ck_usage_amendments_amount_is_sum_of_parts CHECK (
        input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0
        AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos)
);
CREATE INDEX ix_usage_amendments_tenant_id ON usage_amendments (tenant_id);

CREATE TABLE usage_records (
    request_id varchar COLLATE "C" NOT NULL CONSTRAINT pk_usage_records PRIMARY KEY,
    tenant_id varchar NOT NULL,
    key_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar,
    revision_id varchar,
    rank_class integer,
    replica_id varchar NOT NULL,
    outcome varchar NOT NULL,
    started_at timestamptz NOT NULL,
    settled_at timestamptz NOT NULL,
    late_from timestamptz,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    aborted_prefill_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    first_token_ms bigint,
    duration_ms bigint NOT NULL,
    adapter_tier varchar,
    adapter_load_ms bigint NOT NULL,
    stall_ms bigint NOT NULL,
    estimated boolean NOT NULL,
    price_version_id varchar NOT NULL
        CONSTRAINT fk_usage_records_price_version_id_price_versions REFERENCES price_versions (id),
    input_nanos bigint NOT NULL,
    cached_input_nanos bigint NOT NULL,
    output_nanos bigint NOT NULL,
    kv_nanos bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    transfer_id varchar NOT NULL
        CONSTRAINT fk_usage_records_transfer_id_transfers REFERENCES transfers (id) DEFERRABLE INITIALLY DEFERRED,
    kv_measured boolean DEFAULT false NOT NULL,
    service_tier varchar DEFAULT 'default' NOT NULL,
    service_class varchar DEFAULT 'interactive' NOT NULL,
    gpu_us bigint DEFAULT 0 NOT NULL,
    CONSTRAINT ck_usage_records_quantities_possible CHECK (
        input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens),
    CONSTRAINT ck_usage_records_aborted_prefill_is_part_of_input CHECK (
        aborted_prefill_tokens BETWEEN 0 AND input_tokens),
    CONSTRAINT ck_usage_records_amount_is_sum_of_parts CHECK (
        input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0
        AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos),
    CONSTRAINT ck_usage_records_durations_possible CHECK (
        first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0),
    CONSTRAINT ck_usage_records_estimate_has_cause CHECK (NOT estimated OR outcome = 'gateway_gone'),
    CONSTRAINT ck_usage_records_tier_known CHECK (adapter_tier IN ('slot', 'memory', 'disk', 'store')),
    CONSTRAINT ck_usage_records_late_is_later CHECK (late_from > settled_at),
    CONSTRAINT ck_usage_records_service_tier_known CHECK (service_tier IN ('default', 'flex')),
    CONSTRAINT ck_usage_records_service_class_known CHECK (
        service_class IN ('near_real_time', 'interactive', 'batch'))
)PARTITION BY RANGE (request_id);
CREATE INDEX ix_usage_records_tenant_id_late_from ON usage_records (tenant_id, late_from) WHERE late_from IS NOT NULL;
CREATE INDEX ix_usage_records_tenant_id_settled_at ON usage_records (tenant_id, settled_at);
CREATE INDEX ix_usage_records_transfer_id ON usage_records (transfer_id);

CREATE TABLE yielded_usage (
    request_id varchar COLLATE "C" NOT NULL CONSTRAINT pk_yielded_usage PRIMARY KEY,
    tenant_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar,
    replica_id varchar NOT NULL,
    settled_at timestamptz NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    aborted_prefill_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    kv_measured boolean NOT NULL,
    CONSTRAINT ck_yielded_usage_quantities_possible CHECK (
        input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens
        AND aborted_prefill_tokens BETWEEN 0 AND input_tokens)
);

-- What each request used by now: amended requests with the quantities of their newest amendment, voided ones not at all.
CREATE VIEW usage_now AS
SELECT request_id, tenant_id, key_id, base_model, adapter_id, revision_id, rank_class, replica_id, outcome, started_at,
    settled_at, late_from, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured,
    first_token_ms, duration_ms, adapter_tier, adapter_load_ms, stall_ms, estimated, price_version_id, input_nanos,
    cached_input_nanos, output_nanos, kv_nanos, amount_nanos, transfer_id, service_tier, service_class, gpu_us
FROM usage_records r
WHERE NOT EXISTS (SELECT FROM usage_amendments a WHERE a.request_id = r.request_id)
UNION ALL
SELECT r.request_id, r.tenant_id, r.key_id, r.base_model, r.adapter_id, r.revision_id, r.rank_class, r.replica_id,
    r.outcome, r.started_at, r.settled_at, r.late_from, a.input_tokens, a.cached_tokens, a.aborted_prefill_tokens,
    a.output_tokens, a.kv_page_ms, r.kv_measured, r.first_token_ms, r.duration_ms, r.adapter_tier, r.adapter_load_ms,
    r.stall_ms, r.estimated, r.price_version_id, a.input_nanos, a.cached_input_nanos, a.output_nanos, a.kv_nanos,
    a.amount_nanos, a.transfer_id, r.service_tier, r.service_class, r.gpu_us
FROM usage_amendments a JOIN usage_records r ON r.request_id = a.request_id
WHERE a.part = 'replacement'
    AND NOT EXISTS (SELECT FROM usage_amendments b WHERE b.request_id = a.request_id AND b.position > a.position);

CREATE FUNCTION billing_count_amendment()
    RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    r usage_records;
    estimate usage_records;
    charged usage_amendments;
    invoiced_until timestamptz;
    sign int := CASE NEW.part WHEN 'reversal' THEN -1 ELSE 1 END;
    is_rest boolean := right(NEW.request_id, 5) = ':rest';
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
    INSERT INTO usage_hours AS h (
        tenant_id, hour, late_from, key_id, base_model, adapter_id, revision_id, rank_class, price_version_id,
        service_tier, requests, estimated_requests, input_tokens, cached_tokens, aborted_prefill_tokens,
        output_tokens, kv_page_ms, uncached_requests, cached_requests, output_requests, kv_requests,
        input_nanos, cached_input_nanos, output_nanos, kv_nanos
    ) VALUES (
        r.tenant_id, date_trunc('hour', r.settled_at, 'UTC'), coalesce(r.late_from, to_timestamp(0)), r.key_id,
        r.base_model, coalesce(r.adapter_id, ''), coalesce(r.revision_id, ''), coalesce(r.rank_class, 0),
        r.price_version_id, r.service_tier,
        sign * (NOT is_rest)::int, sign * r.estimated::int, sign * NEW.input_tokens, sign * NEW.cached_tokens,
        sign * NEW.aborted_prefill_tokens, sign * NEW.output_tokens, sign * NEW.kv_page_ms,
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
        aborted_prefill_tokens = h.aborted_prefill_tokens + excluded.aborted_prefill_tokens,
        output_tokens = h.output_tokens + excluded.output_tokens,
        kv_page_ms = h.kv_page_ms + excluded.kv_page_ms,
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

-- Once a statement: recording inserts a hundred records at a time.
CREATE FUNCTION billing_refuse_invoiced_records()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    early record;
BEGIN
    PERFORM FROM subscriptions WHERE tenant_id IN (SELECT tenant_id FROM added) ORDER BY tenant_id FOR SHARE;
    SELECT a.request_id, coalesce(a.late_from, a.settled_at) AS at, s.billed_until INTO early
        FROM added a JOIN subscriptions s ON s.tenant_id = a.tenant_id
        WHERE coalesce(a.late_from, a.settled_at) < s.billed_until LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'INSERT of usage record % refused: % is before %, which is invoiced', early.request_id, early.at,
            early.billed_until USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

-- A row trigger, because it is cloned to the partitions.
CREATE FUNCTION billing_refuse_row_change()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of usage record % refused: records are written once', TG_OP, OLD.request_id
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER usage_amendments_counted AFTER INSERT ON usage_amendments FOR EACH ROW EXECUTE FUNCTION billing_count_amendment();
CREATE TRIGGER usage_amendments_posted BEFORE INSERT ON usage_amendments FOR EACH ROW EXECUTE FUNCTION billing_usage_change_is_posted();
CREATE TRIGGER usage_amendments_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON usage_amendments FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER usage_records_not_final AFTER INSERT ON usage_records REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();
CREATE TRIGGER usage_records_not_invoiced AFTER INSERT ON usage_records REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_invoiced_records();
CREATE TRIGGER usage_records_rows_written_once BEFORE DELETE OR UPDATE ON usage_records FOR EACH ROW EXECUTE FUNCTION billing_refuse_row_change();
CREATE TRIGGER usage_records_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON usage_records FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
