CREATE TABLE cost_functions (
    id varchar NOT NULL CONSTRAINT pk_cost_functions PRIMARY KEY,
    base_model varchar NOT NULL,
    rank_max integer NOT NULL,
    engine varchar NOT NULL,
    device varchar NOT NULL,
    fixed_ps bigint NOT NULL,
    prefill_token_ps bigint NOT NULL,
    decode_token_ps bigint NOT NULL,
    context_token_ps bigint NOT NULL,
    adapter_ps bigint NOT NULL,
    observations integer NOT NULL,
    held_out integer NOT NULL,
    median_error_ppm bigint NOT NULL,
    ratio_ppm bigint NOT NULL,
    measured_from_ms bigint NOT NULL,
    measured_to_ms bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_cost_functions_weights_not_negative CHECK (
        fixed_ps >= 0 AND prefill_token_ps >= 0 AND decode_token_ps >= 0 AND context_token_ps >= 0
        AND adapter_ps >= 0),
    CONSTRAINT ck_cost_functions_quality_possible CHECK (
        observations > 0 AND held_out > 0 AND median_error_ppm >= 0 AND ratio_ppm >= 0),
    CONSTRAINT ck_cost_functions_measured_for_some_time CHECK (measured_from_ms < measured_to_ms)
);
CREATE INDEX ix_cost_functions_kind ON cost_functions (base_model, rank_max, device, engine, created_at);

CREATE TABLE outside_prices (
    base_model varchar NOT NULL,
    provider varchar NOT NULL,
    as_of DATE NOT NULL,
    currency varchar NOT NULL,
    input_nanos_per_mtok bigint NOT NULL,
    output_nanos_per_mtok bigint NOT NULL,
    source varchar NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_outside_prices PRIMARY KEY (base_model, provider, as_of, currency),
    CONSTRAINT ck_outside_prices_prices_not_negative CHECK (input_nanos_per_mtok >= 0 AND output_nanos_per_mtok >= 0),
    CONSTRAINT ck_outside_prices_currency_is_a_code CHECK (currency ~ '^[a-z]{3}$')
);

CREATE TABLE replica_rates (
    base_model varchar NOT NULL,
    rank_max integer NOT NULL,
    pool varchar NOT NULL,
    effective_from timestamptz NOT NULL,
    nanos_per_hour bigint NOT NULL,
    slot_nanos_per_hour bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_replica_rates PRIMARY KEY (base_model, rank_max, pool, effective_from),
    CONSTRAINT ck_replica_rates_rates_not_negative CHECK (nanos_per_hour >= 0 AND slot_nanos_per_hour >= 0),
    CONSTRAINT ck_replica_rates_group_named CHECK (base_model <> '' AND rank_max > 0)
);

CREATE TABLE replica_cost_windows (
    replica_id varchar NOT NULL,
    boot_id varchar NOT NULL,
    sequence bigint NOT NULL,
    base_model varchar NOT NULL,
    rank_max integer NOT NULL,
    pool varchar NOT NULL,
    engine varchar NOT NULL,
    device varchar NOT NULL,
    state varchar NOT NULL,
    start_ms bigint NOT NULL,
    end_ms bigint NOT NULL,
    busy_ms bigint NOT NULL,
    stall_ms bigint NOT NULL,
    steps bigint NOT NULL,
    prefill_tokens bigint NOT NULL,
    decode_tokens bigint NOT NULL,
    context_tokens bigint NOT NULL,
    sequence_steps bigint NOT NULL,
    adapter_steps bigint NOT NULL,
    probe_prefill_tokens bigint NOT NULL,
    probe_decode_tokens bigint NOT NULL,
    final boolean NOT NULL,
    CONSTRAINT pk_replica_cost_windows PRIMARY KEY (replica_id, boot_id, sequence),
    CONSTRAINT ck_replica_cost_windows_window_has_length CHECK (start_ms < end_ms),
    CONSTRAINT ck_replica_cost_windows_state_known CHECK (state IN ('starting', 'ready', 'draining', 'unhealthy')),
    CONSTRAINT ck_replica_cost_windows_counts_not_negative CHECK (
        busy_ms >= 0 AND stall_ms >= 0 AND steps >= 0 AND prefill_tokens >= 0 AND decode_tokens >= 0
        AND context_tokens >= 0 AND sequence_steps >= 0 AND adapter_steps >= 0 AND probe_prefill_tokens >= 0
        AND probe_decode_tokens >= 0),
    CONSTRAINT ck_replica_cost_windows_group_named CHECK (base_model <> '' AND rank_max > 0)
);
CREATE INDEX ix_replica_cost_windows_replica_id_start_ms ON replica_cost_windows (replica_id, start_ms);
CREATE INDEX ix_replica_cost_windows_start_ms ON replica_cost_windows (start_ms);

CREATE TABLE cost_hours (
    replica_id varchar NOT NULL,
    hour_ms bigint NOT NULL,
    base_model varchar NOT NULL,
    rank_max integer NOT NULL,
    pool varchar NOT NULL,
    cost_function_id varchar CONSTRAINT fk_cost_hours_cost_function_id_cost_functions REFERENCES cost_functions (id),
    charge NUMERIC(38, 0) NOT NULL,
    carry_in integer NOT NULL,
    carry integer NOT NULL,
    total_nanos bigint NOT NULL,
    paid_ms bigint NOT NULL,
    busy_ms bigint NOT NULL,
    ratio_ppm bigint,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_cost_hours PRIMARY KEY (replica_id, hour_ms),
    CONSTRAINT ck_cost_hours_hour_is_whole CHECK (mod(hour_ms, 3600000) = 0),
    CONSTRAINT ck_cost_hours_total_is_rate_times_time CHECK (
        charge + carry_in = total_nanos::numeric * 3600000 + carry AND carry >= 0 AND carry < 3600000
        AND carry_in >= 0 AND carry_in < 3600000),
    CONSTRAINT ck_cost_hours_busy_is_paid CHECK (paid_ms >= 0 AND busy_ms >= 0 AND busy_ms <= paid_ms)
);
CREATE INDEX ix_cost_hours_hour_ms ON cost_hours (hour_ms);

CREATE TABLE cost_rows (
    replica_id varchar NOT NULL,
    hour_ms bigint NOT NULL,
    tenant_id varchar NOT NULL,
    adapter_id varchar NOT NULL,
    plan_id varchar NOT NULL,
    kind varchar NOT NULL,
    nanos bigint NOT NULL,
    CONSTRAINT pk_cost_rows PRIMARY KEY (replica_id, hour_ms, tenant_id, adapter_id, plan_id, kind),
    CONSTRAINT fk_cost_rows_replica_id_cost_hours FOREIGN KEY(replica_id, hour_ms) REFERENCES cost_hours (replica_id, hour_ms),
    CONSTRAINT ck_cost_rows_costs_something CHECK (nanos > 0),
    CONSTRAINT ck_cost_rows_kind_known CHECK (
        kind IN ('requests', 'aborted_prefill', 'adapter_load', 'pinned', 'platform', 'unclaimed', 'idle', 'starting', 'draining', 'lost')),
    CONSTRAINT ck_cost_rows_owner_fits_kind CHECK (
        (tenant_id <> '') = (kind IN ('requests', 'aborted_prefill', 'adapter_load', 'pinned')))
);
CREATE INDEX ix_cost_rows_hour_ms ON cost_rows (hour_ms);

CREATE FUNCTION billing_cost_rows_add_up()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    total numeric;
BEGIN
    SELECT coalesce(sum(nanos), 0) INTO total FROM cost_rows
    WHERE replica_id = NEW.replica_id AND hour_ms = NEW.hour_ms;
    IF total <> NEW.total_nanos THEN
        RAISE EXCEPTION 'the rows of hour % of % add up to %, and its cost is %', NEW.hour_ms, NEW.replica_id, total,
            NEW.total_nanos USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_cost_windows_are_final()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    owner oid := (SELECT relowner FROM pg_class WHERE oid = TG_RELID);
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('tenora.deleting_cost_windows', true) = 'on'
        AND pg_has_role(current_user, owner, 'MEMBER') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% rows are written once; billing_delete_cost_windows deletes old ones', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

-- Rows are written in the transaction of their hour. An hour that is there already gets no further row.
CREATE FUNCTION billing_refuse_late_cost_row()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM cost_hours h
        WHERE h.replica_id = NEW.replica_id AND h.hour_ms = NEW.hour_ms AND h.xmin = pg_current_xact_id()::xid
    ) THEN
        RAISE EXCEPTION 'INSERT into cost_rows refused: the hour % of % is not being written', NEW.hour_ms,
            NEW.replica_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE CONSTRAINT TRIGGER cost_rows_add_up AFTER INSERT ON cost_hours DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_cost_rows_add_up();
CREATE TRIGGER cost_functions_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON cost_functions FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER cost_hours_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON cost_hours FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER cost_rows_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON cost_rows FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER cost_rows_in_time BEFORE INSERT ON cost_rows FOR EACH ROW EXECUTE FUNCTION billing_refuse_late_cost_row();
CREATE TRIGGER outside_prices_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON outside_prices FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER replica_rates_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON replica_rates FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER replica_cost_windows_are_final BEFORE DELETE OR UPDATE OR TRUNCATE ON replica_cost_windows FOR EACH STATEMENT EXECUTE FUNCTION billing_cost_windows_are_final();
