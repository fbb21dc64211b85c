CREATE TABLE audit_events (
    id text NOT NULL CONSTRAINT pk_audit_events PRIMARY KEY,
    tenant_id text,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    details jsonb NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX ix_audit_events_action_id ON audit_events (action, id);
CREATE INDEX ix_audit_events_actor_id ON audit_events (actor, id);
CREATE INDEX ix_audit_events_created_at ON audit_events (created_at);
CREATE INDEX ix_audit_events_target_id ON audit_events (target, id);
CREATE INDEX ix_audit_events_tenant_id_id ON audit_events (tenant_id, id);

CREATE TABLE base_models (
    id text NOT NULL CONSTRAINT pk_base_models PRIMARY KEY,
    hub_name text NOT NULL CONSTRAINT uq_base_models_hub_name UNIQUE,
    context_tokens bigint NOT NULL,
    vocab_size bigint NOT NULL,
    tokenizer_sha256 text NOT NULL,
    spec_zlib BYTEA NOT NULL,
    spec_sha256 text NOT NULL,
    created_at timestamptz NOT NULL,
    input_token_us bigint DEFAULT 0 NOT NULL,
    output_token_us bigint DEFAULT 0 NOT NULL
);

CREATE TABLE providers (
    id text NOT NULL CONSTRAINT pk_providers PRIMARY KEY,
    name text NOT NULL CONSTRAINT uq_providers_name UNIQUE,
    kind text NOT NULL,
    url text NOT NULL,
    sealed_key BYTEA NOT NULL,
    requests_max bigint NOT NULL,
    spend_nanos_per_month bigint,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_providers_kind_known CHECK (kind IN ('openai', 'anthropic', 'openai_compatible')),
    CONSTRAINT ck_providers_limits_not_negative CHECK (requests_max >= 0 AND spend_nanos_per_month >= 0)
);

CREATE TABLE provider_models (
    base_model text NOT NULL CONSTRAINT pk_provider_models PRIMARY KEY
        CONSTRAINT fk_provider_models_base_model_base_models REFERENCES base_models (id),
    provider_id text NOT NULL CONSTRAINT fk_provider_models_provider_id_providers REFERENCES providers (id),
    model text NOT NULL,
    counts_like text NOT NULL CONSTRAINT fk_provider_models_counts_like_base_models REFERENCES base_models (id),
    margin_percent bigint NOT NULL,
    input_nanos bigint NOT NULL,
    cached_input_nanos bigint NOT NULL,
    output_nanos bigint NOT NULL,
    CONSTRAINT ck_provider_models_margin_possible CHECK (margin_percent BETWEEN 0 AND 100),
    CONSTRAINT ck_provider_models_costs_not_negative CHECK (
        input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0
    )
);
CREATE INDEX ix_provider_models_provider_id ON provider_models (provider_id);

CREATE TABLE cordons (
    kind text NOT NULL,
    name text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_cordons PRIMARY KEY (kind, name)
);

CREATE TABLE pools (
    name text NOT NULL CONSTRAINT pk_pools PRIMARY KEY,
    base_model text NOT NULL CONSTRAINT fk_pools_base_model_base_models REFERENCES base_models (id),
    rank_max bigint NOT NULL,
    hardware text NOT NULL,
    replicas_min bigint NOT NULL,
    replicas_max bigint NOT NULL,
    revision bigint,
    ttft_target_ms bigint,
    itl_target_ms bigint,
    service_classes jsonb,
    tenants jsonb,
    tokens_min bigint,
    tokens_max bigint,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_pools_replicas_ordered CHECK (replicas_min >= 0 AND replicas_min <= replicas_max),
    CONSTRAINT ck_pools_ttft_target_positive CHECK (ttft_target_ms > 0),
    CONSTRAINT ck_pools_itl_target_positive CHECK (itl_target_ms > 0),
    CONSTRAINT ck_pools_tokens_ordered CHECK (tokens_min <= tokens_max)
);

CREATE TABLE pool_revisions (
    pool text NOT NULL CONSTRAINT fk_pool_revisions_pool_pools REFERENCES pools (name),
    number bigint NOT NULL,
    digest text NOT NULL,
    weights text NOT NULL,
    engine text NOT NULL,
    settings jsonb NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_pool_revisions PRIMARY KEY (pool, number),
    CONSTRAINT uq_pool_revisions_pool_digest UNIQUE (pool, digest),
    CONSTRAINT ck_pool_revisions_number_positive CHECK (number > 0)
);
ALTER TABLE pools ADD CONSTRAINT fk_pools_name_revision_pool_revisions
    FOREIGN KEY (name, revision) REFERENCES pool_revisions (pool, number);

CREATE TABLE pool_decisions (
    id BIGSERIAL CONSTRAINT pk_pool_decisions PRIMARY KEY,
    pool text NOT NULL CONSTRAINT fk_pool_decisions_pool_pools REFERENCES pools (name),
    replicas_before bigint NOT NULL,
    replicas bigint NOT NULL,
    reason text NOT NULL,
    inputs jsonb NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX ix_pool_decisions_pool_id ON pool_decisions (pool, id);

CREATE TABLE pool_needs (
    pool text NOT NULL CONSTRAINT fk_pool_needs_pool_pools REFERENCES pools (name),
    slot bigint NOT NULL,
    replicas double precision NOT NULL,
    CONSTRAINT pk_pool_needs PRIMARY KEY (pool, slot)
);

CREATE TABLE idempotent_responses (
    caller text NOT NULL,
    key text NOT NULL,
    request_sha256 text NOT NULL,
    status_code integer,
    body BYTEA,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_idempotent_responses PRIMARY KEY (caller, key)
);
CREATE INDEX ix_idempotent_responses_created_at ON idempotent_responses (created_at);

CREATE TABLE model_groups (
    owner text NOT NULL,
    name text NOT NULL,
    rule text NOT NULL,
    members jsonb NOT NULL,
    threshold_percent bigint NOT NULL,
    patience_ms bigint NOT NULL,
    priority_tier_max bigint NOT NULL,
    escalations_percent_max bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_model_groups PRIMARY KEY (owner, name)
);

CREATE TABLE outbox (
    id BIGSERIAL CONSTRAINT pk_outbox PRIMARY KEY,
    kind text NOT NULL,
    field text NOT NULL,
    created_at timestamptz NOT NULL,
    bulk boolean DEFAULT false NOT NULL
);

CREATE TABLE pin_events (
    id BIGSERIAL CONSTRAINT pk_pin_events PRIMARY KEY,
    tenant_id text NOT NULL,
    adapter_id text NOT NULL,
    engine_name text NOT NULL,
    base_model text NOT NULL,
    rank_class integer NOT NULL,
    pinned boolean NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX ix_pin_events_adapter_id ON pin_events (adapter_id);

CREATE TABLE plans (
    id text NOT NULL CONSTRAINT pk_plans PRIMARY KEY,
    name text NOT NULL CONSTRAINT uq_plans_name UNIQUE,
    created_at timestamptz NOT NULL
);

CREATE TABLE published_snapshot (
    id integer NOT NULL CONSTRAINT pk_published_snapshot PRIMARY KEY,
    epoch text NOT NULL,
    generation bigint NOT NULL,
    CONSTRAINT ck_published_snapshot_one_row CHECK (id = 1)
);

CREATE TABLE base_model_names (
    key text NOT NULL CONSTRAINT pk_base_model_names PRIMARY KEY,
    name text NOT NULL,
    base_model text NOT NULL CONSTRAINT fk_base_model_names_base_model_base_models REFERENCES base_models (id)
);
CREATE INDEX ix_base_model_names_base_model ON base_model_names (base_model);

CREATE TABLE plan_versions (
    id text NOT NULL CONSTRAINT pk_plan_versions PRIMARY KEY,
    plan_id text NOT NULL CONSTRAINT fk_plan_versions_plan_id_plans REFERENCES plans (id),
    number integer NOT NULL,
    limits jsonb NOT NULL,
    prices jsonb NOT NULL,
    price_version_id text NOT NULL,
    created_at timestamptz NOT NULL,
    effective_from timestamptz NOT NULL,
    CONSTRAINT uq_plan_versions_plan_id_number UNIQUE (plan_id, number),
    CONSTRAINT ck_plan_versions_number_positive CHECK (number > 0)
);

CREATE TABLE tenants (
    id text NOT NULL CONSTRAINT pk_tenants PRIMARY KEY,
    name text NOT NULL,
    plan_id text NOT NULL CONSTRAINT fk_tenants_plan_id_plans REFERENCES plans (id),
    status text NOT NULL,
    limit_overrides jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    limit_override_terms jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT ck_tenants_status_known CHECK (status IN ('active', 'suspended', 'closed'))
);
CREATE INDEX ix_tenants_override_terms ON tenants (id) WHERE limit_override_terms <> '{}'::jsonb;
CREATE INDEX ix_tenants_plan_id ON tenants (plan_id);

CREATE TABLE adapters (
    id text NOT NULL CONSTRAINT pk_adapters PRIMARY KEY,
    tenant_id text NOT NULL CONSTRAINT fk_adapters_tenant_id_tenants REFERENCES tenants (id),
    base_model text NOT NULL CONSTRAINT fk_adapters_base_model_base_models REFERENCES base_models (id),
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    deleted_at timestamptz,
    pinned boolean NOT NULL
);
CREATE INDEX ix_adapters_base_model ON adapters (base_model);
CREATE UNIQUE INDEX uq_adapters_live_name ON adapters (tenant_id, name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX uq_adapters_tenant_id_id ON adapters (tenant_id, id);

CREATE TABLE api_keys (
    id text NOT NULL CONSTRAINT pk_api_keys PRIMARY KEY,
    tenant_id text CONSTRAINT fk_api_keys_tenant_id_tenants REFERENCES tenants (id),
    name text NOT NULL,
    key_hash text NOT NULL CONSTRAINT uq_api_keys_key_hash UNIQUE,
    redacted text NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL,
    revoked_at timestamptz,
    limits jsonb,
    CONSTRAINT ck_api_keys_admin_has_no_tenant CHECK ((tenant_id IS NULL) = (scopes = ARRAY['admin']))
);
CREATE INDEX ix_api_keys_tenant_id ON api_keys (tenant_id);

CREATE TABLE plan_drafts (
    id text NOT NULL CONSTRAINT pk_plan_drafts PRIMARY KEY,
    plan_id text NOT NULL CONSTRAINT fk_plan_drafts_plan_id_plans REFERENCES plans (id),
    base_version integer NOT NULL,
    limits jsonb NOT NULL,
    prices jsonb NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    published_version_id text
        CONSTRAINT fk_plan_drafts_published_version_id_plan_versions REFERENCES plan_versions (id)
);
CREATE INDEX ix_plan_drafts_plan_id ON plan_drafts (plan_id);

CREATE TABLE adapter_revocations (
    id text NOT NULL CONSTRAINT pk_adapter_revocations PRIMARY KEY,
    tenant_id text NOT NULL,
    adapter_id text NOT NULL,
    reason text NOT NULL,
    engine_names jsonb NOT NULL,
    receipts jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    unloaded_at timestamptz,
    removed_at timestamptz,
    forgotten_at timestamptz,
    lifted_at timestamptz,
    CONSTRAINT fk_adapter_revocations_tenant_id_adapters FOREIGN KEY(tenant_id, adapter_id) REFERENCES adapters (tenant_id, id),
    CONSTRAINT ck_adapter_revocations_reason_known CHECK (reason IN ('deleted', 'suspended'))
);
CREATE INDEX ix_adapter_revocations_adapter ON adapter_revocations (adapter_id);
CREATE INDEX ix_adapter_revocations_open ON adapter_revocations (id) WHERE forgotten_at IS NULL AND lifted_at IS NULL;

CREATE TABLE aliases (
    adapter_id text NOT NULL,
    name text NOT NULL,
    tenant_id text NOT NULL,
    weights jsonb NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT pk_aliases PRIMARY KEY (adapter_id, name),
    CONSTRAINT fk_aliases_tenant_id_adapters FOREIGN KEY(tenant_id, adapter_id) REFERENCES adapters (tenant_id, id)
);

CREATE TABLE revisions (
    id text NOT NULL CONSTRAINT pk_revisions PRIMARY KEY,
    tenant_id text NOT NULL,
    adapter_id text NOT NULL,
    status text NOT NULL,
    size_bytes bigint NOT NULL,
    digest text,
    report jsonb,
    attempts integer NOT NULL,
    next_attempt_at timestamptz,
    created_at timestamptz NOT NULL,
    completed_at timestamptz,
    decided_at timestamptz,
    uploads_removed_at timestamptz,
    checked_digest text,
    rank integer,
    rank_class integer,
    canary jsonb,
    canary_attempts integer NOT NULL,
    canary_asked_at timestamptz,
    stored_removed_at timestamptz,
    ready_change_id bigint,
    stored_bytes bigint,
    CONSTRAINT fk_revisions_tenant_id_adapters FOREIGN KEY(tenant_id, adapter_id) REFERENCES adapters (tenant_id, id),
    CONSTRAINT ck_revisions_status_known CHECK (status IN ('uploading', 'validating', 'ready', 'rejected')),
    CONSTRAINT ck_revisions_ready_has_digest CHECK ((status = 'ready') = (digest IS NOT NULL)),
    CONSTRAINT ck_revisions_size_positive CHECK (size_bytes > 0)
);
CREATE INDEX ix_revisions_adapter ON revisions (tenant_id, adapter_id, id);
CREATE INDEX ix_revisions_checked_digest ON revisions (checked_digest);
CREATE INDEX ix_revisions_uncleaned ON revisions (created_at) WHERE uploads_removed_at IS NULL;
CREATE INDEX ix_revisions_waiting ON revisions (status, id) WHERE status IN ('uploading', 'validating');

CREATE TABLE upload_files (
    revision_id text NOT NULL CONSTRAINT fk_upload_files_revision_id_revisions REFERENCES revisions (id),
    path text NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 text NOT NULL,
    s3_upload_id text,
    part_bytes bigint,
    CONSTRAINT pk_upload_files PRIMARY KEY (revision_id, path),
    CONSTRAINT ck_upload_files_size_positive CHECK (size_bytes > 0)
);

CREATE TABLE batch_files (
    id text NOT NULL CONSTRAINT pk_batch_files PRIMARY KEY,
    tenant_id text NOT NULL CONSTRAINT fk_batch_files_tenant_id_tenants REFERENCES tenants (id),
    filename text NOT NULL,
    purpose text NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    stored_at timestamptz,
    deleted_at timestamptz,
    CONSTRAINT ck_batch_files_purpose_known CHECK (purpose IN ('batch', 'batch_output')),
    CONSTRAINT ck_batch_files_size_possible CHECK (size_bytes >= 0)
);
CREATE INDEX ix_batch_files_expires_at ON batch_files (expires_at);
CREATE INDEX ix_batch_files_tenant_id_id ON batch_files (tenant_id, id);

CREATE TABLE batches (
    id text NOT NULL CONSTRAINT pk_batches PRIMARY KEY,
    tenant_id text NOT NULL CONSTRAINT fk_batches_tenant_id_tenants REFERENCES tenants (id),
    key_id text NOT NULL CONSTRAINT fk_batches_key_id_api_keys REFERENCES api_keys (id),
    input_file_id text NOT NULL,
    endpoint text NOT NULL,
    priority bigint NOT NULL,
    callback_endpoint_id text,
    labels jsonb,
    status text NOT NULL,
    service_class text NOT NULL,
    errors jsonb,
    model text,
    total bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    enqueued_tokens bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_nanos bigint NOT NULL,
    result_bytes bigint NOT NULL,
    ends_as text,
    end_code text,
    end_message text,
    output_file_id text,
    error_file_id text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    cancelling_at timestamptz,
    ended_at timestamptz,
    CONSTRAINT ck_batches_status_known CHECK (status IN (
        'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
    CONSTRAINT ck_batches_ended_has_time CHECK (
        (ended_at IS NOT NULL) = (status IN ('failed', 'completed', 'expired', 'cancelled'))),
    CONSTRAINT ck_batches_counts_possible CHECK (completed >= 0 AND failed >= 0 AND completed + failed <= total)
);
CREATE INDEX ix_batches_open ON batches (id) WHERE ended_at IS NULL;
CREATE INDEX ix_batches_tenant_id_id ON batches (tenant_id, id);

CREATE TABLE batch_results (
    batch_id text NOT NULL CONSTRAINT fk_batch_results_batch_id_batches REFERENCES batches (id),
    line bigint NOT NULL,
    failed boolean NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_batch_results PRIMARY KEY (batch_id, line)
);

CREATE TABLE batch_pauses (
    id bigint NOT NULL CONSTRAINT pk_batch_pauses PRIMARY KEY,
    reason text NOT NULL,
    since timestamptz NOT NULL,
    CONSTRAINT ck_batch_pauses_one_row CHECK (id = 1)
);

CREATE VIEW adapter_names AS SELECT id AS adapter_id, tenant_id, name FROM adapters;

CREATE VIEW outside_models AS SELECT base_model, counts_like FROM provider_models;

CREATE VIEW stored_revisions AS
SELECT r.tenant_id, r.adapter_id, a.base_model, coalesce(r.rank_class, 0) AS rank_class, r.id AS revision_id, r.digest,
    r.stored_bytes, r.decided_at AS begins, a.deleted_at AS ends
FROM revisions r JOIN adapters a ON a.id = r.adapter_id
WHERE r.status = 'ready' AND r.stored_bytes IS NOT NULL AND r.decided_at IS NOT NULL;

CREATE VIEW pinned_slots AS
SELECT tenant_id, adapter_id, base_model, rank_class, engine_name, at AS begins, ends
FROM (SELECT *, lead(at) OVER (PARTITION BY engine_name ORDER BY at, id) AS ends FROM pin_events) events
WHERE pinned;

CREATE FUNCTION control_plane_audit_is_final()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
        DECLARE
            owner oid := (SELECT relowner FROM pg_class WHERE oid = TG_RELID);
        BEGIN
            IF TG_OP = 'DELETE' AND current_setting('tenora.archiving_audit', true) = 'on'
                AND pg_has_role(current_user, owner, 'MEMBER') THEN
                RETURN NULL;
            END IF;
            RAISE EXCEPTION '% rows are only ever added', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
        END $$;

CREATE FUNCTION control_plane_rows_are_final()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
        BEGIN
            RAISE EXCEPTION '% rows are only ever added', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
        END $$;

CREATE FUNCTION plan_drafts_published_once()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF OLD.published_version_id IS NOT NULL THEN
        RAISE EXCEPTION 'UPDATE of draft % refused: it is published', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER audit_events_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON audit_events FOR EACH STATEMENT EXECUTE FUNCTION control_plane_audit_is_final();
CREATE TRIGGER pin_events_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON pin_events FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER plan_drafts_published_once BEFORE UPDATE ON plan_drafts FOR EACH ROW EXECUTE FUNCTION plan_drafts_published_once();
CREATE TRIGGER plan_versions_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON plan_versions FOR EACH STATEMENT EXECUTE FUNCTION control_plane_rows_are_final();
