"""Credit: lots, and their entries with a balance that never becomes negative. Spending: terms, limits and ceilings.

Revision: 2026_11_24_1130, after 2026_11_24_1120.
"""

from alembic import op

revision = "2026_11_24_1130"
down_revision = "2026_11_24_1120"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE credit_lots (
    id VARCHAR NOT NULL,
    tenant_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    amount_nanos BIGINT NOT NULL,
    priority INTEGER NOT NULL,
    effective_from TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    models VARCHAR[] NOT NULL,
    reference VARCHAR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_credit_lots PRIMARY KEY (id),
    CONSTRAINT uq_credit_lots_tenant_id_reference UNIQUE (tenant_id, reference),
    CONSTRAINT ck_credit_lots_kind_known CHECK (kind IN ('paid', 'promotional')),
    CONSTRAINT ck_credit_lots_amount_positive CHECK (amount_nanos > 0),
    CONSTRAINT ck_credit_lots_paid_in_cents CHECK (kind = 'promotional' OR amount_nanos % 10000000 = 0),
    CONSTRAINT ck_credit_lots_priority_in_range CHECK (priority BETWEEN 0 AND 100),
    CONSTRAINT ck_credit_lots_has_a_time CHECK (expires_at > effective_from),
    CONSTRAINT ck_credit_lots_reference_bounded CHECK (length(reference) BETWEEN 1 AND 200)
);
CREATE TABLE credit_entries (
    lot_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    amount_nanos BIGINT NOT NULL,
    balance_nanos BIGINT NOT NULL,
    invoice_id VARCHAR,
    transfer_id VARCHAR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_credit_entries PRIMARY KEY (lot_id, number),
    CONSTRAINT uq_credit_entries_transfer_id UNIQUE (transfer_id),
    CONSTRAINT fk_credit_entries_lot_id_credit_lots FOREIGN KEY (lot_id) REFERENCES credit_lots (id),
    CONSTRAINT fk_credit_entries_transfer_id_transfers FOREIGN KEY (transfer_id) REFERENCES transfers (id),
    CONSTRAINT ck_credit_entries_kind_known CHECK (kind IN ('grant', 'burn', 'lapse', 'refund', 'void')),
    CONSTRAINT ck_credit_entries_begins_with_the_grant CHECK (number > 0 AND (number = 1) = (kind = 'grant')),
    CONSTRAINT ck_credit_entries_moves_something CHECK (amount_nanos <> 0),
    CONSTRAINT ck_credit_entries_only_grants_and_lapses_add
        CHECK (kind = 'lapse' OR (amount_nanos > 0) = (kind = 'grant')),
    CONSTRAINT ck_credit_entries_balance_not_negative CHECK (balance_nanos >= 0),
    CONSTRAINT ck_credit_entries_invoice_fits_kind CHECK (invoice_id IS NULL OR kind = 'burn')
);
CREATE INDEX ix_credit_entries_invoice_id ON credit_entries (invoice_id) WHERE invoice_id IS NOT NULL;
CREATE INDEX ix_usage_hours_late ON usage_hours (tenant_id, late_from) WHERE late_from > '1970-01-01T00:00:00Z'::timestamptz;
CREATE TABLE spending_terms (
    tenant_id VARCHAR NOT NULL,
    mode VARCHAR NOT NULL,
    credit_limit_nanos BIGINT,
    invoice_threshold_nanos BIGINT,
    balance_floors_nanos BIGINT[] NOT NULL,
    top_up_cents BIGINT,
    top_up_floor_nanos BIGINT,
    top_up_month_cents_max BIGINT,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_spending_terms PRIMARY KEY (tenant_id),
    CONSTRAINT ck_spending_terms_mode_known CHECK (mode IN ('prepaid', 'postpaid')),
    CONSTRAINT ck_spending_terms_credit_limit_not_negative CHECK (credit_limit_nanos >= 0),
    CONSTRAINT ck_spending_terms_invoice_threshold_positive CHECK (invoice_threshold_nanos > 0),
    CONSTRAINT ck_spending_terms_few_floors CHECK (cardinality(balance_floors_nanos) <= 10),
    CONSTRAINT ck_spending_terms_top_up_is_whole CHECK ((top_up_cents IS NULL) = (top_up_floor_nanos IS NULL)
        AND (top_up_cents IS NULL) = (top_up_month_cents_max IS NULL)),
    CONSTRAINT ck_spending_terms_top_up_possible
        CHECK (top_up_cents > 0 AND top_up_floor_nanos >= 0 AND top_up_month_cents_max >= top_up_cents)
);
CREATE TABLE spend_ceilings (
    tenant_id VARCHAR NOT NULL,
    revision BIGINT NOT NULL,
    ceiling_nanos BIGINT,
    balance_nanos BIGINT NOT NULL,
    unbilled_nanos BIGINT NOT NULL,
    receivable_nanos BIGINT NOT NULL,
    receivable_entries BIGINT NOT NULL,
    recheck_at TIMESTAMP WITH TIME ZONE,
    to_publish BOOLEAN NOT NULL,
    computed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_spend_ceilings PRIMARY KEY (tenant_id),
    CONSTRAINT ck_spend_ceilings_ceiling_not_negative CHECK (ceiling_nanos >= 0)
);
CREATE INDEX ix_spend_ceilings_to_publish ON spend_ceilings (tenant_id) WHERE to_publish;
CREATE INDEX ix_spend_ceilings_recheck_at ON spend_ceilings (recheck_at);
CREATE INDEX ix_credit_lots_expires_at ON credit_lots (expires_at);
CREATE TABLE spend_limits (
    id VARCHAR NOT NULL,
    tenant_id VARCHAR NOT NULL,
    scope VARCHAR NOT NULL,
    subject_id VARCHAR NOT NULL,
    window_kind VARCHAR NOT NULL,
    amount_nanos BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_spend_limits PRIMARY KEY (id),
    CONSTRAINT uq_spend_limits_tenant_id_scope_subject_id_window_kind UNIQUE (tenant_id, scope, subject_id, window_kind),
    CONSTRAINT ck_spend_limits_scope_known CHECK (scope IN ('tenant', 'key', 'adapter')),
    CONSTRAINT ck_spend_limits_subject_fits_scope CHECK ((subject_id = '') = (scope = 'tenant')),
    CONSTRAINT ck_spend_limits_window_known CHECK (window_kind IN ('day', 'month')),
    CONSTRAINT ck_spend_limits_amount_not_negative CHECK (amount_nanos >= 0)
);
"""

# The number of an entry is its lot's next, so two writers of one lot cannot both continue the same entry.
TRIGGERS = """
CREATE TRIGGER credit_lots_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON credit_lots
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER credit_entries_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON credit_entries
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

CREATE FUNCTION billing_credit_entry_continues() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before credit_entries;
BEGIN
    SELECT * INTO before FROM credit_entries WHERE lot_id = NEW.lot_id ORDER BY number DESC LIMIT 1;
    IF NEW.number <> coalesce(before.number, 0) + 1
        OR NEW.balance_nanos <> coalesce(before.balance_nanos, 0) + NEW.amount_nanos THEN
        RAISE EXCEPTION 'entry % of credit lot % says a balance of %; it must continue entry % with balance %',
            NEW.number, NEW.lot_id, NEW.balance_nanos, coalesce(before.number, 0), coalesce(before.balance_nanos, 0)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER credit_entries_continue BEFORE INSERT ON credit_entries
    FOR EACH ROW EXECUTE FUNCTION billing_credit_entry_continues();

CREATE FUNCTION billing_credit_entry_is_posted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lot credit_lots;
BEGIN
    SELECT * INTO lot FROM credit_lots WHERE id = NEW.lot_id;
    IF NEW.number = 1 AND NEW.amount_nanos <> lot.amount_nanos THEN
        RAISE EXCEPTION 'credit lot % grants %; its first entry says %', lot.id, lot.amount_nanos, NEW.amount_nanos
            USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (
        SELECT FROM entries e JOIN accounts a ON a.id = e.account_id
        WHERE e.transfer_id = NEW.transfer_id AND e.amount_nanos = - NEW.amount_nanos
            AND a.kind = 'credits_' || lot.kind AND a.tenant_id = lot.tenant_id
    ) THEN
        RAISE EXCEPTION 'transfer % does not move the % of entry % of credit lot %', NEW.transfer_id, NEW.amount_nanos,
            NEW.number, lot.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER credit_entries_are_posted AFTER INSERT ON credit_entries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_credit_entry_is_posted();

CREATE FUNCTION billing_credit_lot_is_granted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM credit_entries WHERE lot_id = NEW.id) THEN
        RAISE EXCEPTION 'credit lot % has no entry; write its grant in the same transaction', NEW.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER credit_lots_are_granted AFTER INSERT ON credit_lots DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_credit_lot_is_granted();
"""

FUNCTIONS = ("billing_credit_entry_continues()", "billing_credit_entry_is_posted()", "billing_credit_lot_is_granted()")


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(TRIGGERS)


def downgrade() -> None:
    op.drop_index("ix_usage_hours_late", "usage_hours")
    for table in ("spend_limits", "spend_ceilings", "spending_terms"):
        op.drop_table(table)
    op.drop_table("credit_entries")
    op.drop_table("credit_lots")
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
