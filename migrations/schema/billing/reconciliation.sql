CREATE TABLE engine_ended_requests (
    request_id varchar COLLATE "C" NOT NULL,
    replica_id varchar NOT NULL,
    boot_id varchar NOT NULL,
    tenant_id varchar NOT NULL,
    base_model varchar NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint,
    ended_at timestamptz NOT NULL,
    reported_at timestamptz NOT NULL,
    CONSTRAINT pk_engine_ended_requests PRIMARY KEY (request_id, replica_id, boot_id),
    CONSTRAINT ck_engine_ended_requests_counts_possible CHECK (
        prompt_tokens >= 0 AND cached_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0)
);
CREATE INDEX ix_engine_ended_requests_reported_at ON engine_ended_requests (reported_at);

CREATE TABLE engine_usage_hours (
    hour timestamptz NOT NULL,
    replica_id varchar NOT NULL,
    boot_id varchar NOT NULL,
    tenant_id varchar NOT NULL,
    base_model varchar NOT NULL,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    kv_unmeasured_requests bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_engine_usage_hours PRIMARY KEY (hour, replica_id, boot_id, tenant_id),
    CONSTRAINT ck_engine_usage_hours_counts_possible CHECK (
        requests >= 0 AND prompt_tokens >= 0 AND cached_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0
        AND kv_unmeasured_requests >= 0)
);
CREATE INDEX ix_engine_usage_hours_changed_at ON engine_usage_hours (changed_at);

CREATE TABLE reconciliation_runs (
    id varchar NOT NULL CONSTRAINT pk_reconciliation_runs PRIMARY KEY,
    mode varchar NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    changed_since timestamptz,
    hours bigint NOT NULL,
    engine_tokens bigint NOT NULL,
    ledger_tokens bigint NOT NULL,
    explained_tokens bigint NOT NULL,
    unexplained_tokens bigint NOT NULL,
    engine_kv_page_ms bigint NOT NULL,
    ledger_kv_page_ms bigint NOT NULL,
    explained_kv_page_ms bigint NOT NULL,
    unexplained_kv_page_ms bigint NOT NULL,
    unexplained_nanos bigint NOT NULL,
    differing bigint NOT NULL,
    CONSTRAINT ck_reconciliation_runs_mode_known CHECK (mode IN ('changed', 'full')),
    CONSTRAINT ck_reconciliation_runs_mode_fits_start CHECK ((mode = 'full') = (changed_since IS NULL)),
    CONSTRAINT ck_reconciliation_runs_counts_possible CHECK (hours >= 0 AND differing >= 0)
);

CREATE TABLE reconciliation_differences (
    run_id varchar NOT NULL
        CONSTRAINT fk_reconciliation_differences_run_id_reconciliation_runs REFERENCES reconciliation_runs (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL,
    kind varchar NOT NULL,
    subject varchar NOT NULL,
    replica_id varchar,
    tenant_id varchar,
    base_model varchar,
    hour timestamptz,
    unit varchar NOT NULL,
    expected bigint NOT NULL,
    found bigint NOT NULL,
    explained bigint NOT NULL,
    unexplained bigint NOT NULL,
    request_ids varchar[] NOT NULL,
    CONSTRAINT pk_reconciliation_differences PRIMARY KEY (run_id, position),
    CONSTRAINT ck_reconciliation_differences_unit_known CHECK (
        unit IN ('token', 'page_millisecond', 'nanodollar', 'cent', 'document'))
);

CREATE TRIGGER engine_ended_requests_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON engine_ended_requests FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER reconciliation_differences_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON reconciliation_differences FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER reconciliation_runs_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON reconciliation_runs FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
