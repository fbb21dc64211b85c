CREATE TABLE notification_endpoints (
    id text NOT NULL CONSTRAINT pk_notification_endpoints PRIMARY KEY,
    tenant_id text NOT NULL,
    kind text NOT NULL,
    address text NOT NULL,
    event_types text[] NOT NULL,
    status text NOT NULL,
    disabled_reason text,
    signing_secret BYTEA,
    previous_secret BYTEA,
    previous_secret_until timestamptz,
    last_success_at timestamptz,
    failing_since timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT ck_notification_endpoints_kind_known CHECK (kind IN ('email', 'webhook')),
    CONSTRAINT ck_notification_endpoints_status_known CHECK (
        status IN ('unconfirmed', 'active', 'disabled', 'deleted')),
    CONSTRAINT ck_notification_endpoints_only_email_is_confirmed CHECK (status <> 'unconfirmed' OR kind = 'email'),
    CONSTRAINT ck_notification_endpoints_webhooks_have_a_secret CHECK (
        (signing_secret IS NOT NULL) = (kind = 'webhook' AND status <> 'deleted')),
    CONSTRAINT ck_notification_endpoints_previous_secret_expires CHECK (
        (previous_secret IS NULL) = (previous_secret_until IS NULL)),
    CONSTRAINT ck_notification_endpoints_reason_fits_status CHECK (
        (disabled_reason IS NOT NULL) = (status = 'disabled'))
);
CREATE INDEX ix_notification_endpoints_tenant_id ON notification_endpoints (tenant_id);
CREATE UNIQUE INDEX uq_notification_endpoints_address ON notification_endpoints (tenant_id, kind, address) WHERE status <> 'deleted';

CREATE TABLE notifications (
    id text NOT NULL CONSTRAINT pk_notifications PRIMARY KEY,
    tenant_id text NOT NULL,
    event_type text NOT NULL,
    data jsonb NOT NULL,
    dedupe_key text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_notifications_tenant_id_dedupe_key UNIQUE (tenant_id, dedupe_key),
    CONSTRAINT ck_notifications_dedupe_key_bounded CHECK (length(dedupe_key) BETWEEN 1 AND 300)
);
CREATE INDEX ix_notifications_tenant_id_created_at ON notifications (tenant_id, created_at);

CREATE TABLE notification_deliveries (
    id text NOT NULL CONSTRAINT pk_notification_deliveries PRIMARY KEY,
    notification_id text NOT NULL
        CONSTRAINT fk_notification_deliveries_notification_id_notifications REFERENCES notifications (id),
    endpoint_id text NOT NULL
        CONSTRAINT fk_notification_deliveries_endpoint_id_notification_endpoints REFERENCES notification_endpoints (id),
    tenant_id text NOT NULL,
    state text NOT NULL,
    attempts bigint NOT NULL,
    attempts_before bigint NOT NULL,
    queued_at timestamptz NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    leased_until timestamptz,
    last_error text,
    delivered_at timestamptz,
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_notification_deliveries_notification_id_endpoint_id UNIQUE (notification_id, endpoint_id),
    CONSTRAINT ck_notification_deliveries_state_known CHECK (state IN ('pending', 'delivered', 'failed')),
    CONSTRAINT ck_notification_deliveries_attempts_possible CHECK (attempts_before BETWEEN 0 AND attempts),
    CONSTRAINT ck_notification_deliveries_delivered_has_time CHECK ((delivered_at IS NOT NULL) = (state = 'delivered')),
    CONSTRAINT ck_notification_deliveries_only_pending_is_leased CHECK (leased_until IS NULL OR state = 'pending')
);
CREATE INDEX ix_notification_deliveries_due ON notification_deliveries (next_attempt_at) WHERE state = 'pending';
CREATE INDEX ix_notification_deliveries_leased ON notification_deliveries (endpoint_id) WHERE leased_until IS NOT NULL;
CREATE INDEX ix_notification_deliveries_of_endpoint ON notification_deliveries (endpoint_id, next_attempt_at) WHERE state = 'pending';
CREATE INDEX ix_notification_deliveries_tenant_id_id ON notification_deliveries (tenant_id, id);

CREATE TRIGGER notifications_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON notifications FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
