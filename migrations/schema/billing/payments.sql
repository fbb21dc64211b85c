CREATE TABLE payment_charges (
    id text NOT NULL CONSTRAINT pk_payment_charges PRIMARY KEY,
    tenant_id text NOT NULL,
    invoice_id text,
    covers jsonb NOT NULL,
    amount_cents bigint NOT NULL,
    on_page boolean NOT NULL,
    method text,
    page text,
    state text NOT NULL,
    failure text,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_payment_charges_amount_positive CHECK (amount_cents > 0),
    CONSTRAINT ck_payment_charges_covers_invoices CHECK ((invoice_id IS NULL) = (covers = '{}')),
    CONSTRAINT ck_payment_charges_state_known CHECK (state IN ('pending', 'paid', 'failed', 'needs_owner'))
);
CREATE INDEX ix_payment_charges_invoice_id ON payment_charges (invoice_id);
CREATE INDEX ix_payment_charges_tenant_id ON payment_charges (tenant_id, id);

CREATE TABLE dunning_cases (
    invoice_id text NOT NULL CONSTRAINT pk_dunning_cases PRIMARY KEY,
    tenant_id text NOT NULL,
    started_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    next_attempt_at timestamptz,
    suspends_at timestamptz,
    suspended boolean NOT NULL,
    tried_method text,
    pay_token text NOT NULL CONSTRAINT uq_dunning_cases_pay_token UNIQUE,
    ended_at timestamptz
);
CREATE INDEX ix_dunning_cases_open ON dunning_cases (tenant_id) WHERE ended_at IS NULL;
CREATE INDEX ix_dunning_cases_tenant_id ON dunning_cases (tenant_id);

CREATE TABLE payment_alarms (
    id text NOT NULL CONSTRAINT pk_payment_alarms PRIMARY KEY,
    kind text NOT NULL,
    tenant_id text,
    message text NOT NULL,
    dedupe_key text NOT NULL CONSTRAINT uq_payment_alarms_dedupe_key UNIQUE,
    created_at timestamptz NOT NULL,
    seen_at timestamptz
);
CREATE INDEX ix_payment_alarms_tenant_id ON payment_alarms (tenant_id);

CREATE TABLE payment_queues (
    tenant_id text NOT NULL CONSTRAINT pk_payment_queues PRIMARY KEY,
    customer_id text CONSTRAINT uq_payment_queues_customer_id UNIQUE,
    test_clock text,
    clock_at timestamptz,
    stopped_reason text,
    stopped_at timestamptz,
    next_attempt_at timestamptz,
    attempts bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_payment_queues_stop_has_reason CHECK ((stopped_reason IS NULL) = (stopped_at IS NULL)),
    CONSTRAINT ck_payment_queues_clock_known CHECK (clock_at IS NULL OR test_clock IS NOT NULL)
);
CREATE INDEX ix_payment_queues_due ON payment_queues (next_attempt_at) WHERE next_attempt_at IS NOT NULL AND stopped_at IS NULL;

CREATE TABLE payment_standings (
    tenant_id text NOT NULL CONSTRAINT pk_payment_standings PRIMARY KEY,
    standing text NOT NULL,
    reason text NOT NULL,
    changed_at timestamptz NOT NULL,
    applied_at timestamptz,
    ours boolean NOT NULL,
    CONSTRAINT ck_payment_standings_standing_known CHECK (standing IN ('good', 'suspended'))
);
CREATE INDEX ix_payment_standings_waiting ON payment_standings (changed_at) WHERE applied_at IS NULL;

CREATE TABLE stripe_events (
    id text NOT NULL CONSTRAINT pk_stripe_events PRIMARY KEY,
    type text NOT NULL,
    object_kind text NOT NULL,
    object_id text,
    customer text,
    api_version text,
    source text NOT NULL,
    created_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    note text,
    handled_at timestamptz,
    CONSTRAINT ck_stripe_events_state_known CHECK (state IN ('stored', 'handled', 'ignored', 'failed')),
    CONSTRAINT ck_stripe_events_source_known CHECK (source IN ('webhook', 'list')),
    CONSTRAINT ck_stripe_events_handled_has_time CHECK ((handled_at IS NULL) = (state IN ('stored', 'failed')))
);
CREATE INDEX ix_stripe_events_due ON stripe_events (next_attempt_at) WHERE state = 'stored';
CREATE INDEX ix_stripe_events_received_at ON stripe_events (received_at);

CREATE TABLE stripe_events_listed (
    name text NOT NULL CONSTRAINT pk_stripe_events_listed PRIMARY KEY,
    listed_until timestamptz NOT NULL
);

CREATE TABLE payment_operations (
    id text NOT NULL CONSTRAINT pk_payment_operations PRIMARY KEY,
    position bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT uq_payment_operations_position UNIQUE,
    tenant_id text NOT NULL
        CONSTRAINT fk_payment_operations_tenant_id_payment_queues REFERENCES payment_queues (tenant_id),
    kind text NOT NULL,
    content jsonb NOT NULL,
    dedupe_key text NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    last_error text,
    result jsonb,
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    decided text,
    idempotency_key text CONSTRAINT uq_payment_operations_idempotency_key UNIQUE,
    key_number integer DEFAULT 0 NOT NULL,
    key_since timestamptz,
    look_up boolean DEFAULT false NOT NULL,
    object_id text,
    approved boolean DEFAULT false NOT NULL,
    CONSTRAINT uq_payment_operations_tenant_id_dedupe_key UNIQUE (tenant_id, dedupe_key),
    CONSTRAINT ck_payment_operations_state_known CHECK (state IN ('pending', 'done', 'failed', 'cancelled')),
    CONSTRAINT ck_payment_operations_finished_has_time CHECK ((finished_at IS NULL) = (state = 'pending')),
    CONSTRAINT ck_payment_operations_key_has_time CHECK ((idempotency_key IS NULL) = (key_since IS NULL))
);
CREATE INDEX ix_payment_operations_waiting ON payment_operations (tenant_id, position) WHERE state = 'pending';

CREATE TABLE received_payments (
    payment_intent text NOT NULL CONSTRAINT pk_received_payments PRIMARY KEY,
    tenant_id text NOT NULL,
    charge_id text NOT NULL CONSTRAINT fk_received_payments_charge_id_payment_charges REFERENCES payment_charges (id),
    amount_cents bigint NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX ix_received_payments_charge_id ON received_payments (charge_id);
CREATE INDEX ix_received_payments_tenant_id ON received_payments (tenant_id);

CREATE TABLE returned_payments (
    stripe_object text NOT NULL CONSTRAINT pk_returned_payments PRIMARY KEY,
    payment_intent text NOT NULL
        CONSTRAINT fk_returned_payments_payment_intent_received_payments REFERENCES received_payments (payment_intent),
    amount_cents bigint NOT NULL,
    booked_cents bigint NOT NULL,
    transfer_id text CONSTRAINT uq_returned_payments_transfer_id UNIQUE,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_returned_payments_transfer_books CHECK ((booked_cents = 0) = (transfer_id IS NULL)),
    CONSTRAINT ck_returned_payments_booked_of_amount CHECK (abs(booked_cents) <= abs(amount_cents))
);
CREATE INDEX ix_returned_payments_payment_intent ON returned_payments (payment_intent);

CREATE FUNCTION payments_refuse_new_content()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%: what was written is frozen; only its progress changes', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER payment_charges_frozen BEFORE UPDATE ON payment_charges FOR EACH ROW WHEN ((((((((old.id IS DISTINCT FROM new.id) OR (old.tenant_id IS DISTINCT FROM new.tenant_id)) OR (old.invoice_id IS DISTINCT FROM new.invoice_id)) OR (old.covers IS DISTINCT FROM new.covers)) OR (old.amount_cents IS DISTINCT FROM new.amount_cents)) OR (old.on_page IS DISTINCT FROM new.on_page)) OR ((old.method IS NOT NULL) AND (old.method IS DISTINCT FROM new.method)) OR ((old.page IS NOT NULL) AND (old.page IS DISTINCT FROM new.page)) OR ((old.state = 'paid'::text) AND (new.state <> 'paid'::text)))) EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER payment_charges_kept BEFORE DELETE OR TRUNCATE ON payment_charges FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER payment_operations_frozen BEFORE UPDATE ON payment_operations FOR EACH ROW WHEN ((((((((old.id IS DISTINCT FROM new.id) OR (old.tenant_id IS DISTINCT FROM new.tenant_id)) OR (old.kind IS DISTINCT FROM new.kind)) OR (old.content IS DISTINCT FROM new.content)) OR (old.dedupe_key IS DISTINCT FROM new.dedupe_key)) OR (old.created_at IS DISTINCT FROM new.created_at)) OR ((old.state <> 'pending'::text) AND ((old.state IS DISTINCT FROM new.state) OR (old.result IS DISTINCT FROM new.result))) OR ((old.object_id IS NOT NULL) AND (old.object_id IS DISTINCT FROM new.object_id)) OR ((old.key_number = new.key_number) AND (((old.idempotency_key IS NOT NULL) AND (old.idempotency_key IS DISTINCT FROM new.idempotency_key)) OR ((old.decided IS NOT NULL) AND (old.decided IS DISTINCT FROM new.decided)))))) EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER payment_operations_kept BEFORE DELETE OR TRUNCATE ON payment_operations FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER received_payments_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON received_payments FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER returned_payments_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON returned_payments FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER stripe_events_frozen BEFORE UPDATE ON stripe_events FOR EACH ROW WHEN ((((((((((old.id IS DISTINCT FROM new.id) OR (old.type IS DISTINCT FROM new.type)) OR (old.object_kind IS DISTINCT FROM new.object_kind)) OR (old.object_id IS DISTINCT FROM new.object_id)) OR (old.customer IS DISTINCT FROM new.customer)) OR (old.api_version IS DISTINCT FROM new.api_version)) OR (old.source IS DISTINCT FROM new.source)) OR (old.created_at IS DISTINCT FROM new.created_at)) OR (old.state = 'handled'::text))) EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER stripe_events_kept BEFORE DELETE OR TRUNCATE ON stripe_events FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
