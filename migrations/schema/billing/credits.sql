CREATE TABLE credit_lots (
    id varchar NOT NULL CONSTRAINT pk_credit_lots PRIMARY KEY,
    tenant_id varchar NOT NULL,
    kind varchar NOT NULL,
    amount_nanos bigint NOT NULL,
    priority integer NOT NULL,
    effective_from timestamptz NOT NULL,
    expires_at timestamptz,
    models varchar[] NOT NULL,
    reference varchar NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_credit_lots_tenant_id_reference UNIQUE (tenant_id, reference),
    CONSTRAINT ck_credit_lots_kind_known CHECK (kind IN ('paid', 'promotional')),
    CONSTRAINT ck_credit_lots_amount_positive CHECK (amount_nanos > 0),
    CONSTRAINT ck_credit_lots_paid_in_cents CHECK (kind = 'promotional' OR amount_nanos % 10000000 = 0),
    CONSTRAINT ck_credit_lots_priority_in_range CHECK (priority BETWEEN 0 AND 100),
    CONSTRAINT ck_credit_lots_has_a_time CHECK (expires_at > effective_from),
    CONSTRAINT ck_credit_lots_reference_bounded CHECK (length(reference) BETWEEN 1 AND 200)
);
CREATE INDEX ix_credit_lots_expires_at ON credit_lots (expires_at);

CREATE TABLE credit_entries (
    lot_id varchar NOT NULL CONSTRAINT fk_credit_entries_lot_id_credit_lots REFERENCES credit_lots (id),
    number integer NOT NULL,
    kind varchar NOT NULL,
    amount_nanos bigint NOT NULL,
    balance_nanos bigint NOT NULL,
    invoice_id varchar,
    transfer_id varchar NOT NULL
        CONSTRAINT uq_credit_entries_transfer_id UNIQUE CONSTRAINT fk_credit_entries_transfer_id_transfers REFERENCES transfers (id),
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_credit_entries PRIMARY KEY (lot_id, number),
    CONSTRAINT ck_credit_entries_kind_known CHECK (kind IN ('grant', 'burn', 'return', 'lapse', 'refund', 'void')),
    CONSTRAINT ck_credit_entries_begins_with_the_grant CHECK (number > 0 AND (number = 1) = (kind = 'grant')),
    CONSTRAINT ck_credit_entries_moves_something CHECK (amount_nanos <> 0),
    CONSTRAINT ck_credit_entries_only_some_kinds_add CHECK (
        kind = 'lapse' OR (amount_nanos > 0) = (kind IN ('grant', 'return'))),
    CONSTRAINT ck_credit_entries_balance_not_negative CHECK (balance_nanos >= 0),
    CONSTRAINT ck_credit_entries_invoice_fits_kind CHECK (
        (invoice_id IS NULL OR kind IN ('burn', 'return')) AND (invoice_id IS NOT NULL OR kind <> 'return'))
);
CREATE INDEX ix_credit_entries_invoice_id ON credit_entries (invoice_id) WHERE invoice_id IS NOT NULL;
CREATE UNIQUE INDEX uq_credit_entries_returned_once ON credit_entries (invoice_id, lot_id) WHERE kind = 'return';

CREATE FUNCTION billing_credit_entry_continues()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_credit_entry_is_posted()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_credit_fits_invoice()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM invoices WHERE id = NEW.invoice_id) THEN
        PERFORM billing_check_invoice_credit(NEW.invoice_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_credit_lot_is_granted()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM credit_entries WHERE lot_id = NEW.id) THEN
        RAISE EXCEPTION 'credit lot % has no entry; write its grant in the same transaction', NEW.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_returned_credit_was_used()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM credit_entries e WHERE e.lot_id = NEW.lot_id AND e.invoice_id = NEW.invoice_id AND e.kind = 'burn'
            AND e.amount_nanos = - NEW.amount_nanos
    ) THEN
        RAISE EXCEPTION 'invoice % did not use % of credit lot %', NEW.invoice_id, NEW.amount_nanos, NEW.lot_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE CONSTRAINT TRIGGER credit_entries_are_posted AFTER INSERT ON credit_entries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_credit_entry_is_posted();
CREATE CONSTRAINT TRIGGER credit_entries_fit_invoice AFTER INSERT ON credit_entries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.invoice_id IS NOT NULL)) EXECUTE FUNCTION billing_credit_fits_invoice();
CREATE CONSTRAINT TRIGGER credit_lots_are_granted AFTER INSERT ON credit_lots DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_credit_lot_is_granted();
CREATE TRIGGER credit_entries_continue BEFORE INSERT ON credit_entries FOR EACH ROW EXECUTE FUNCTION billing_credit_entry_continues();
CREATE TRIGGER credit_entries_return_what_was_used BEFORE INSERT ON credit_entries FOR EACH ROW WHEN (((new.kind)::text = 'return'::text)) EXECUTE FUNCTION billing_returned_credit_was_used();
CREATE TRIGGER credit_entries_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_entries FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER credit_lots_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_lots FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
