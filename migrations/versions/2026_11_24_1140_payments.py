"""Adds payments through Stripe: each tenant's queue of operations with their steps and keys, Stripe's events, top-ups,
received and returned money, dunning, and alarms.

Revision: 2026_11_24_1140, after 2026_11_24_1130.
"""

from alembic import op

revision = "2026_11_24_1140"
down_revision = "2026_11_24_1130"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE payment_queues (
    tenant_id TEXT NOT NULL,
    customer_id TEXT,
    test_clock TEXT,
    clock_at TIMESTAMPTZ,
    stopped_reason TEXT,
    stopped_at TIMESTAMPTZ,
    next_attempt_at TIMESTAMPTZ,
    leased_until TIMESTAMPTZ,
    fence BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_payment_queues PRIMARY KEY (tenant_id),
    CONSTRAINT uq_payment_queues_customer_id UNIQUE (customer_id),
    CONSTRAINT ck_payment_queues_stop_has_reason CHECK ((stopped_reason IS NULL) = (stopped_at IS NULL)),
    CONSTRAINT ck_payment_queues_clock_known CHECK (clock_at IS NULL OR test_clock IS NOT NULL)
);
CREATE INDEX ix_payment_queues_due ON payment_queues (next_attempt_at)
    WHERE next_attempt_at IS NOT NULL AND stopped_at IS NULL;
CREATE TABLE payment_operations (
    id TEXT NOT NULL,
    position BIGINT GENERATED ALWAYS AS IDENTITY NOT NULL,
    tenant_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    content JSONB NOT NULL,
    dedupe_key TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    result JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    finished_at TIMESTAMPTZ,
    CONSTRAINT pk_payment_operations PRIMARY KEY (id),
    CONSTRAINT uq_payment_operations_position UNIQUE (position),
    CONSTRAINT uq_payment_operations_tenant_id_dedupe_key UNIQUE (tenant_id, dedupe_key),
    CONSTRAINT fk_payment_operations_tenant_id_payment_queues FOREIGN KEY (tenant_id)
        REFERENCES payment_queues (tenant_id),
    CONSTRAINT ck_payment_operations_state_known CHECK (state IN ('pending', 'done', 'failed', 'cancelled')),
    CONSTRAINT ck_payment_operations_finished_has_time CHECK ((finished_at IS NULL) = (state = 'pending'))
);
CREATE INDEX ix_payment_operations_waiting ON payment_operations (tenant_id, position) WHERE state = 'pending';
CREATE TABLE payment_steps (
    operation_id TEXT NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    key_since TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    look_up BOOLEAN NOT NULL,
    object_id TEXT,
    finished_at TIMESTAMPTZ,
    CONSTRAINT pk_payment_steps PRIMARY KEY (operation_id, name),
    CONSTRAINT uq_payment_steps_idempotency_key UNIQUE (idempotency_key),
    CONSTRAINT fk_payment_steps_operation_id_payment_operations FOREIGN KEY (operation_id)
        REFERENCES payment_operations (id),
    CONSTRAINT ck_payment_steps_finished_has_object CHECK ((object_id IS NULL) = (finished_at IS NULL))
);
CREATE TABLE pushed_invoices (
    invoice_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    number TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    state TEXT NOT NULL,
    pushed_with TEXT,
    stripe_invoice TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_pushed_invoices PRIMARY KEY (invoice_id),
    CONSTRAINT uq_pushed_invoices_stripe_invoice UNIQUE (stripe_invoice),
    CONSTRAINT ck_pushed_invoices_state_known CHECK (state IN ('queued', 'carried', 'pushed', 'ended')),
    CONSTRAINT ck_pushed_invoices_amount_not_negative CHECK (amount_cents >= 0)
);
CREATE INDEX ix_pushed_invoices_tenant_id ON pushed_invoices (tenant_id);
CREATE INDEX ix_pushed_invoices_pushed_with ON pushed_invoices (pushed_with);
CREATE TABLE stripe_events (
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    object_kind TEXT NOT NULL,
    object_id TEXT,
    customer TEXT,
    api_version TEXT,
    source TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    received_at TIMESTAMPTZ NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_attempt_at TIMESTAMPTZ NOT NULL,
    note TEXT,
    handled_at TIMESTAMPTZ,
    CONSTRAINT pk_stripe_events PRIMARY KEY (id),
    CONSTRAINT ck_stripe_events_state_known CHECK (state IN ('stored', 'handled', 'ignored', 'failed')),
    CONSTRAINT ck_stripe_events_source_known CHECK (source IN ('webhook', 'list')),
    CONSTRAINT ck_stripe_events_handled_has_time CHECK ((handled_at IS NULL) = (state IN ('stored', 'failed')))
);
CREATE INDEX ix_stripe_events_due ON stripe_events (next_attempt_at) WHERE state = 'stored';
CREATE INDEX ix_stripe_events_received_at ON stripe_events (received_at);
CREATE TABLE stripe_events_listed (
    name TEXT NOT NULL,
    listed_until TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_stripe_events_listed PRIMARY KEY (name)
);
CREATE TABLE top_ups (
    id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    state TEXT NOT NULL,
    failure TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_top_ups PRIMARY KEY (id),
    CONSTRAINT ck_top_ups_amount_positive CHECK (amount_cents > 0),
    CONSTRAINT ck_top_ups_state_known CHECK (state IN ('pending', 'paid', 'failed', 'needs_owner'))
);
CREATE INDEX ix_top_ups_tenant_id ON top_ups (tenant_id);
CREATE TABLE received_payments (
    payment_intent TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    stripe_invoice TEXT,
    top_up_id TEXT,
    amount_cents BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_received_payments PRIMARY KEY (payment_intent)
);
CREATE INDEX ix_received_payments_tenant_id ON received_payments (tenant_id);
CREATE INDEX ix_received_payments_stripe_invoice ON received_payments (stripe_invoice);
CREATE TABLE returned_payments (
    stripe_object TEXT NOT NULL,
    payment_intent TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_returned_payments PRIMARY KEY (stripe_object),
    CONSTRAINT fk_returned_payments_payment_intent_received_payments FOREIGN KEY (payment_intent)
        REFERENCES received_payments (payment_intent),
    CONSTRAINT ck_returned_payments_amount_not_negative CHECK (amount_cents >= 0)
);
CREATE INDEX ix_returned_payments_payment_intent ON returned_payments (payment_intent);
CREATE TABLE dunning_cases (
    invoice_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    state TEXT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    attempts INTEGER NOT NULL,
    next_attempt_at TIMESTAMPTZ,
    suspends_at TIMESTAMPTZ NOT NULL,
    suspended BOOLEAN NOT NULL,
    tried_method TEXT,
    last_reason TEXT,
    hosted_url TEXT,
    ended_at TIMESTAMPTZ,
    CONSTRAINT pk_dunning_cases PRIMARY KEY (invoice_id),
    CONSTRAINT ck_dunning_cases_state_known
        CHECK (state IN ('retrying', 'needs_method', 'needs_owner', 'exhausted', 'paid', 'ended'))
);
CREATE INDEX ix_dunning_cases_tenant_id ON dunning_cases (tenant_id);
CREATE INDEX ix_dunning_cases_open ON dunning_cases (tenant_id) WHERE state NOT IN ('paid', 'ended');
CREATE TABLE payment_standings (
    tenant_id TEXT NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    applied_at TIMESTAMPTZ,
    ours BOOLEAN NOT NULL,
    CONSTRAINT pk_payment_standings PRIMARY KEY (tenant_id),
    CONSTRAINT ck_payment_standings_standing_known CHECK (standing IN ('good', 'suspended'))
);
CREATE INDEX ix_payment_standings_waiting ON payment_standings (changed_at) WHERE applied_at IS NULL;
CREATE TABLE payment_alarms (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    tenant_id TEXT,
    message TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ,
    CONSTRAINT pk_payment_alarms PRIMARY KEY (id),
    CONSTRAINT uq_payment_alarms_dedupe_key UNIQUE (dedupe_key)
);
CREATE INDEX ix_payment_alarms_tenant_id ON payment_alarms (tenant_id);
"""

# What was asked of Stripe, and what Stripe reported, stays as it was written.
FROZEN = """
CREATE FUNCTION payments_refuse_new_content() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: what was written is frozen; only its progress changes', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER payment_operations_frozen BEFORE UPDATE ON payment_operations FOR EACH ROW
    WHEN ((OLD.id, OLD.tenant_id, OLD.kind, OLD.content, OLD.dedupe_key, OLD.created_at)
        IS DISTINCT FROM (NEW.id, NEW.tenant_id, NEW.kind, NEW.content, NEW.dedupe_key, NEW.created_at)
        OR (OLD.state <> 'pending' AND (OLD.state, OLD.result) IS DISTINCT FROM (NEW.state, NEW.result)))
    EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER payment_steps_frozen BEFORE UPDATE ON payment_steps FOR EACH ROW
    WHEN (OLD.object_id IS NOT NULL
        OR (OLD.operation_id, OLD.name) IS DISTINCT FROM (NEW.operation_id, NEW.name)
        OR (NEW.generation = OLD.generation AND NEW.idempotency_key <> OLD.idempotency_key))
    EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER stripe_events_frozen BEFORE UPDATE ON stripe_events FOR EACH ROW
    WHEN ((OLD.id, OLD.type, OLD.object_kind, OLD.object_id, OLD.customer, OLD.api_version, OLD.source, OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.type, NEW.object_kind, NEW.object_id, NEW.customer, NEW.api_version, NEW.source, NEW.created_at)
        OR OLD.state = 'handled')
    EXECUTE FUNCTION payments_refuse_new_content();
"""

EVERY_SCOPE = (
    "ARRAY['inference', 'adapters:read', 'adapters:write', 'usage:read', 'billing:read', 'keys:write',"
    " 'notifications:write']"
)
INSERT_ONLY = ("received_payments", "returned_payments")
NEVER_REMOVED = ("payment_operations", "payment_steps", "stripe_events")
REVERSED = (
    "payment_alarms", "payment_standings", "dunning_cases", "returned_payments", "received_payments", "top_ups",
    "stripe_events_listed", "stripe_events", "pushed_invoices", "payment_steps", "payment_operations",
    "payment_queues",
)  # fmt: skip


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute(FROZEN)
    op.execute(  # keys that could do everything can also pay
        "UPDATE api_keys SET scopes = ARRAY(SELECT unnest(scopes || 'billing:write'::text) ORDER BY 1)"
        f" WHERE scopes @> {EVERY_SCOPE} AND NOT 'billing:write' = ANY (scopes)"
    )
    for table in INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )
    for table in NEVER_REMOVED:
        op.execute(
            f"CREATE TRIGGER {table}_kept BEFORE DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )


def downgrade() -> None:
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'billing:write')")
    for table in REVERSED:
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION payments_refuse_new_content()")
