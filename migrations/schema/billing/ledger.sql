CREATE TABLE accounts (
    id varchar NOT NULL CONSTRAINT pk_accounts PRIMARY KEY,
    kind varchar NOT NULL,
    tenant_id varchar,
    CONSTRAINT uq_accounts_kind_tenant_id UNIQUE NULLS NOT DISTINCT (kind, tenant_id),
    CONSTRAINT ck_accounts_kind_known CHECK (
        kind IN ('usage_unbilled', 'receivable', 'customer_balance', 'credits_paid', 'credits_promotional', 'revenue', 'rounding', 'cash', 'promotions', 'breakage', 'tax_payable', 'bad_debt')),
    CONSTRAINT ck_accounts_owner_fits_kind CHECK (
        (tenant_id IS NULL) = (kind IN ('revenue', 'rounding', 'cash', 'promotions', 'breakage', 'tax_payable', 'bad_debt')))
);

CREATE TABLE transfers (
    id varchar NOT NULL CONSTRAINT pk_transfers PRIMARY KEY,
    kind varchar NOT NULL,
    invoice_id varchar
        CONSTRAINT uq_transfers_invoice_id UNIQUE,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_transfers_kind_known CHECK (
        kind IN ('usage', 'adjustment', 'invoice', 'amendment', 'credit_note', 'payment', 'refund', 'void', 'write_off', 'recovery', 'credit_grant', 'credit_burn', 'credit_lapse', 'balance')),
    CONSTRAINT ck_transfers_cause_fits_kind CHECK ((kind = 'invoice') = (invoice_id IS NOT NULL))
);
CREATE INDEX ix_transfers_revenue_created_at ON transfers (created_at) WHERE kind IN ('adjustment', 'credit_note', 'void');

CREATE TABLE entries (
    transfer_id varchar NOT NULL
        CONSTRAINT fk_entries_transfer_id_transfers REFERENCES transfers (id) DEFERRABLE INITIALLY DEFERRED,
    account_id varchar NOT NULL CONSTRAINT fk_entries_account_id_accounts REFERENCES accounts (id),
    amount_nanos bigint NOT NULL,
    CONSTRAINT pk_entries PRIMARY KEY (transfer_id, account_id)
);
CREATE INDEX ix_entries_account_id ON entries (account_id);

-- A transfer is inserted after its entries and records, so at commit it is whole: two legs or more that sum to zero,
-- and, for usage, on each tenant's own account exactly what the tenant's records cost.
CREATE FUNCTION billing_transfer_is_whole()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    legs bigint;
    total numeric;
    differing text;
BEGIN
    SELECT count(*), coalesce(sum(amount_nanos), 0) INTO legs, total FROM entries WHERE transfer_id = NEW.id;
    IF legs < 2 OR total <> 0 THEN
        RAISE EXCEPTION 'transfer % has % legs that sum to %; it needs two or more that sum to zero', NEW.id, legs, total
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.kind = 'usage' THEN
        SELECT tenant_id INTO differing FROM (
            SELECT tenant_id, sum(amount_nanos) AS used FROM usage_records WHERE transfer_id = NEW.id GROUP BY tenant_id
        ) r FULL JOIN (
            SELECT a.tenant_id, e.amount_nanos AS owed FROM entries e JOIN accounts a ON a.id = e.account_id
            WHERE e.transfer_id = NEW.id AND a.kind = 'usage_unbilled'
        ) l USING (tenant_id) WHERE used IS DISTINCT FROM owed LIMIT 1;
        IF differing IS NOT NULL THEN
            RAISE EXCEPTION 'transfer % does not move what the usage records of tenant % cost', NEW.id, differing
                USING ERRCODE = 'check_violation';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER transfers_are_whole AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_transfer_is_whole();
CREATE TRIGGER accounts_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER entries_not_final AFTER INSERT ON entries REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();
CREATE TRIGGER entries_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON entries FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER transfers_wait_for_parts BEFORE INSERT ON transfers FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();
CREATE TRIGGER transfers_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON transfers FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
