CREATE TABLE period_states (
    tenant_id varchar NOT NULL,
    period_end timestamptz NOT NULL,
    state jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_period_states PRIMARY KEY (tenant_id, period_end)
);

CREATE TABLE usage_adjustments (
    id varchar NOT NULL CONSTRAINT pk_usage_adjustments PRIMARY KEY,
    tenant_id varchar NOT NULL,
    period_start timestamptz NOT NULL,
    amount_nanos bigint NOT NULL,
    transfer_id varchar NOT NULL
        CONSTRAINT uq_usage_adjustments_transfer_id UNIQUE CONSTRAINT fk_usage_adjustments_transfer_id_transfers REFERENCES transfers (id),
    created_at timestamptz NOT NULL,
    usage_nanos bigint NOT NULL,
    CONSTRAINT ck_usage_adjustments_adjusts_something CHECK (amount_nanos <> 0)
);
CREATE INDEX ix_usage_adjustments_tenant_id_period_start ON usage_adjustments (tenant_id, period_start);

CREATE FUNCTION billing_count_adjustment()
    RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM billing_add_to_month(NEW.tenant_id, NEW.created_at, '', 0, 0, 0, NEW.usage_nanos);
    RETURN NULL;
END $$;

-- What a period leaves is written by the transaction that closes it: before it the period is open, after it closed.
CREATE FUNCTION billing_refuse_closed_period()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM subscriptions WHERE tenant_id = NEW.tenant_id AND billed_until >= NEW.period_end) THEN
        RAISE EXCEPTION 'INSERT into % refused: the time until %, which is invoiced, left something else', TG_TABLE_NAME,
            NEW.period_end USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE CONSTRAINT TRIGGER period_states_close AFTER INSERT ON period_states DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
CREATE TRIGGER period_states_not_closed BEFORE INSERT ON period_states FOR EACH ROW EXECUTE FUNCTION billing_refuse_closed_period();
CREATE TRIGGER period_states_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON period_states FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER usage_adjustments_counted AFTER INSERT ON usage_adjustments FOR EACH ROW EXECUTE FUNCTION billing_count_adjustment();
CREATE TRIGGER usage_adjustments_not_invoiced BEFORE INSERT ON usage_adjustments FOR EACH ROW EXECUTE FUNCTION billing_refuse_invoiced_time();
CREATE TRIGGER usage_adjustments_posted BEFORE INSERT ON usage_adjustments FOR EACH ROW EXECUTE FUNCTION billing_usage_change_is_posted();
CREATE TRIGGER usage_adjustments_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON usage_adjustments FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
