"""Replaces invoices at Stripe by charges: one payment intent over what is due. Each operation holds its own key.

Revision: 2026_11_26_2100, after 2026_11_26_1920. Nothing was released before, so no payment is carried over.
"""

import runpy
from pathlib import Path

from alembic import op

revision = "2026_11_26_2100"
down_revision = "2026_11_26_1920"
branch_labels = None
depends_on = None

TABLES = """
DROP TABLE payment_steps;
DROP TABLE pushed_invoices;
DROP TABLE top_ups;
DROP TABLE returned_payments;
DROP TABLE received_payments;
DROP TABLE dunning_cases;
DROP TRIGGER payment_operations_frozen ON payment_operations;
ALTER TABLE payment_operations
    ADD COLUMN decided TEXT,
    ADD COLUMN idempotency_key TEXT,
    ADD COLUMN key_number INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN key_since TIMESTAMPTZ,
    ADD COLUMN look_up BOOLEAN NOT NULL DEFAULT false,
    ADD COLUMN object_id TEXT,
    ADD COLUMN approved BOOLEAN NOT NULL DEFAULT false,
    ADD CONSTRAINT uq_payment_operations_idempotency_key UNIQUE (idempotency_key),
    ADD CONSTRAINT ck_payment_operations_key_has_time CHECK ((idempotency_key IS NULL) = (key_since IS NULL));
CREATE TABLE charges (
    id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    invoice_id TEXT,
    covers JSONB NOT NULL,
    amount_cents BIGINT NOT NULL,
    on_page BOOLEAN NOT NULL,
    method TEXT,
    page TEXT,
    state TEXT NOT NULL,
    failure TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_charges PRIMARY KEY (id),
    CONSTRAINT ck_charges_amount_positive CHECK (amount_cents > 0),
    CONSTRAINT ck_charges_covers_invoices CHECK ((invoice_id IS NULL) = (covers = '{}')),
    CONSTRAINT ck_charges_state_known CHECK (state IN ('pending', 'paid', 'failed', 'needs_owner'))
);
CREATE INDEX ix_charges_tenant_id ON charges (tenant_id, id);
CREATE INDEX ix_charges_invoice_id ON charges (invoice_id);
CREATE TABLE received_payments (
    payment_intent TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    charge_id TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_received_payments PRIMARY KEY (payment_intent),
    CONSTRAINT fk_received_payments_charge_id_charges FOREIGN KEY (charge_id) REFERENCES charges (id)
);
CREATE INDEX ix_received_payments_tenant_id ON received_payments (tenant_id);
CREATE INDEX ix_received_payments_charge_id ON received_payments (charge_id);
CREATE TABLE returned_payments (
    stripe_object TEXT NOT NULL,
    payment_intent TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    booked_cents BIGINT NOT NULL,
    transfer_id TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT pk_returned_payments PRIMARY KEY (stripe_object),
    CONSTRAINT uq_returned_payments_transfer_id UNIQUE (transfer_id),
    CONSTRAINT fk_returned_payments_payment_intent_received_payments FOREIGN KEY (payment_intent)
        REFERENCES received_payments (payment_intent),
    CONSTRAINT ck_returned_payments_transfer_books CHECK ((booked_cents = 0) = (transfer_id IS NULL)),
    CONSTRAINT ck_returned_payments_booked_of_amount CHECK (abs(booked_cents) <= abs(amount_cents))
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
    pay_token TEXT NOT NULL,
    ended_at TIMESTAMPTZ,
    CONSTRAINT pk_dunning_cases PRIMARY KEY (invoice_id),
    CONSTRAINT uq_dunning_cases_pay_token UNIQUE (pay_token),
    CONSTRAINT ck_dunning_cases_state_known
        CHECK (state IN ('retrying', 'needs_method', 'needs_owner', 'exhausted', 'paid', 'ended'))
);
CREATE INDEX ix_dunning_cases_tenant_id ON dunning_cases (tenant_id);
CREATE INDEX ix_dunning_cases_open ON dunning_cases (tenant_id) WHERE state NOT IN ('paid', 'ended');
"""

# What was asked of Stripe stays as it was written. A key changes only with its number, and what was decided with it.
FROZEN = """
CREATE TRIGGER payment_operations_frozen BEFORE UPDATE ON payment_operations FOR EACH ROW
    WHEN ((OLD.id, OLD.tenant_id, OLD.kind, OLD.content, OLD.dedupe_key, OLD.created_at)
        IS DISTINCT FROM (NEW.id, NEW.tenant_id, NEW.kind, NEW.content, NEW.dedupe_key, NEW.created_at)
        OR (OLD.state <> 'pending' AND (OLD.state, OLD.result) IS DISTINCT FROM (NEW.state, NEW.result))
        OR (OLD.object_id IS NOT NULL AND OLD.object_id IS DISTINCT FROM NEW.object_id)
        OR (OLD.key_number = NEW.key_number
            AND (OLD.idempotency_key IS NOT NULL AND OLD.idempotency_key IS DISTINCT FROM NEW.idempotency_key
                OR OLD.decided IS NOT NULL AND OLD.decided IS DISTINCT FROM NEW.decided)))
    EXECUTE FUNCTION payments_refuse_new_content();
CREATE TRIGGER charges_frozen BEFORE UPDATE ON charges FOR EACH ROW
    WHEN ((OLD.id, OLD.tenant_id, OLD.invoice_id, OLD.covers, OLD.amount_cents, OLD.on_page)
        IS DISTINCT FROM
        (NEW.id, NEW.tenant_id, NEW.invoice_id, NEW.covers, NEW.amount_cents, NEW.on_page)
        OR (OLD.method IS NOT NULL AND OLD.method IS DISTINCT FROM NEW.method)
        OR (OLD.page IS NOT NULL AND OLD.page IS DISTINCT FROM NEW.page)
        OR (OLD.state = 'paid' AND NEW.state <> 'paid'))
    EXECUTE FUNCTION payments_refuse_new_content();
"""
INSERT_ONLY = ("received_payments", "returned_payments")


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute(FROZEN)
    _written_once()
    op.execute(
        "CREATE TRIGGER charges_kept BEFORE DELETE OR TRUNCATE ON charges "
        "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
    )


def downgrade() -> None:
    """The tables as they were, without rows."""
    payments = runpy.run_path(str(Path(__file__).parent / "2026_11_24_1140_payments.py"))
    returned = runpy.run_path(str(Path(__file__).parent / "2026_11_25_1410_returned_money.py"))
    for table in ("returned_payments", "received_payments", "charges", "dunning_cases"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP TRIGGER payment_operations_frozen ON payment_operations")
    for column in ("decided", "idempotency_key", "key_number", "key_since", "look_up", "object_id", "approved"):
        op.execute(f"ALTER TABLE payment_operations DROP COLUMN {column}")
    earlier = ("payment_steps", "pushed_invoices", "top_ups", "received_payments", "returned_payments", "dunning_cases")
    for statement in payments["TABLES"].split(";\n"):
        if any(f" {table} (" in statement for table in earlier):
            op.execute(statement)
    for statement in payments["FROZEN"].split(";\n")[1:]:
        if "ON payment_operations " in statement or "ON payment_steps " in statement:
            op.execute(statement)
    returned["upgrade"]()
    _written_once()


def _written_once() -> None:
    for table in INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )
