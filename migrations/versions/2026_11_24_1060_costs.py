"""The tables of unit economics: reported windows of replicas' time, dated rates and outside prices, cost
    functions, and
the cost of each replica by the hour with whose cost it was.

Revision: 2026_11_24_1060, after 2026_11_24_1050.
"""

from alembic import op

revision = "2026_11_24_1060"
down_revision = "2026_11_24_1050"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE replica_cost_windows (
    replica_id VARCHAR NOT NULL,
    boot_id VARCHAR NOT NULL,
    sequence BIGINT NOT NULL,
    base_model VARCHAR NOT NULL,
    rank_max INTEGER NOT NULL,
    engine VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT NOT NULL,
    busy_ms BIGINT NOT NULL,
    stall_ms BIGINT NOT NULL,
    steps BIGINT NOT NULL,
    prefill_tokens BIGINT NOT NULL,
    decode_tokens BIGINT NOT NULL,
    context_tokens BIGINT NOT NULL,
    sequence_steps BIGINT NOT NULL,
    adapter_steps BIGINT NOT NULL,
    probe_prefill_tokens BIGINT NOT NULL,
    probe_decode_tokens BIGINT NOT NULL,
    final BOOLEAN NOT NULL,
    CONSTRAINT pk_replica_cost_windows PRIMARY KEY (replica_id, boot_id, sequence),
    CONSTRAINT ck_replica_cost_windows_window_has_length CHECK (start_ms < end_ms),
    CONSTRAINT ck_replica_cost_windows_state_known CHECK (state IN ('starting', 'ready', 'draining', 'unhealthy')),
    CONSTRAINT ck_replica_cost_windows_counts_not_negative CHECK (busy_ms >= 0 AND stall_ms >= 0 AND steps >= 0 AND
        prefill_tokens >= 0 AND decode_tokens >= 0 AND context_tokens >= 0 AND sequence_steps >= 0 AND
        adapter_steps >= 0 AND probe_prefill_tokens >= 0 AND probe_decode_tokens >= 0),
    CONSTRAINT ck_replica_cost_windows_pool_named CHECK (base_model <> '' AND rank_max > 0)
);
CREATE INDEX ix_replica_cost_windows_replica_id_start_ms ON replica_cost_windows (replica_id, start_ms);
CREATE TABLE pool_rates (
    base_model VARCHAR NOT NULL,
    rank_max INTEGER NOT NULL,
    effective_from TIMESTAMP WITH TIME ZONE NOT NULL,
    nanos_per_hour BIGINT NOT NULL,
    slot_nanos_per_hour BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_pool_rates PRIMARY KEY (base_model, rank_max, effective_from),
    CONSTRAINT ck_pool_rates_rates_not_negative CHECK (nanos_per_hour >= 0 AND slot_nanos_per_hour >= 0),
    CONSTRAINT ck_pool_rates_pool_named CHECK (base_model <> '' AND rank_max > 0)
);
CREATE TABLE outside_prices (
    base_model VARCHAR NOT NULL,
    provider VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    currency VARCHAR NOT NULL,
    input_nanos_per_mtok BIGINT NOT NULL,
    output_nanos_per_mtok BIGINT NOT NULL,
    source VARCHAR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_outside_prices PRIMARY KEY (base_model, provider, as_of, currency),
    CONSTRAINT ck_outside_prices_prices_not_negative CHECK (input_nanos_per_mtok >= 0 AND output_nanos_per_mtok >= 0),
    CONSTRAINT ck_outside_prices_currency_is_a_code CHECK (currency ~ '^[a-z]{3}$')
);
CREATE TABLE cost_functions (
    id VARCHAR NOT NULL,
    base_model VARCHAR NOT NULL,
    rank_max INTEGER NOT NULL,
    engine VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    fixed_ps BIGINT NOT NULL,
    prefill_token_ps BIGINT NOT NULL,
    decode_token_ps BIGINT NOT NULL,
    context_token_ps BIGINT NOT NULL,
    adapter_ps BIGINT NOT NULL,
    observations INTEGER NOT NULL,
    held_out INTEGER NOT NULL,
    median_error_ppm BIGINT NOT NULL,
    ratio_ppm BIGINT NOT NULL,
    measured_from_ms BIGINT NOT NULL,
    measured_to_ms BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_cost_functions PRIMARY KEY (id),
    CONSTRAINT ck_cost_functions_weights_not_negative CHECK (fixed_ps >= 0 AND prefill_token_ps >= 0 AND
        decode_token_ps >= 0 AND context_token_ps >= 0 AND adapter_ps >= 0),
    CONSTRAINT ck_cost_functions_quality_possible CHECK (observations > 0 AND held_out > 0 AND median_error_ppm >=
        0 AND ratio_ppm >= 0),
    CONSTRAINT ck_cost_functions_measured_for_some_time CHECK (measured_from_ms < measured_to_ms)
);
CREATE INDEX ix_cost_functions_pool ON cost_functions (base_model, rank_max, device, engine, created_at);
CREATE TABLE cost_hours (
    replica_id VARCHAR NOT NULL,
    hour_ms BIGINT NOT NULL,
    base_model VARCHAR NOT NULL,
    rank_max INTEGER NOT NULL,
    cost_function_id VARCHAR,
    charge NUMERIC(38, 0) NOT NULL,
    carry_in INTEGER NOT NULL,
    carry INTEGER NOT NULL,
    total_nanos BIGINT NOT NULL,
    paid_ms BIGINT NOT NULL,
    busy_ms BIGINT NOT NULL,
    ratio_ppm BIGINT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_cost_hours PRIMARY KEY (replica_id, hour_ms),
    CONSTRAINT ck_cost_hours_hour_is_whole CHECK (mod(hour_ms, 3600000) = 0),
    CONSTRAINT ck_cost_hours_total_is_rate_times_time CHECK (charge + carry_in = total_nanos::numeric * 3600000 +
        carry AND carry >= 0 AND carry < 3600000 AND carry_in >= 0 AND carry_in < 3600000),
    CONSTRAINT ck_cost_hours_busy_is_paid CHECK (paid_ms >= 0 AND busy_ms >= 0 AND busy_ms <= paid_ms),
    CONSTRAINT fk_cost_hours_cost_function_id_cost_functions FOREIGN KEY(cost_function_id) REFERENCES
        cost_functions (id)
);
CREATE INDEX ix_cost_hours_hour_ms ON cost_hours (hour_ms);
CREATE TABLE cost_rows (
    replica_id VARCHAR NOT NULL,
    hour_ms BIGINT NOT NULL,
    tenant_id VARCHAR NOT NULL,
    adapter_id VARCHAR NOT NULL,
    plan_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    nanos BIGINT NOT NULL,
    CONSTRAINT pk_cost_rows PRIMARY KEY (replica_id, hour_ms, tenant_id, adapter_id, plan_id, kind),
    CONSTRAINT fk_cost_rows_replica_id_cost_hours FOREIGN KEY(replica_id, hour_ms) REFERENCES cost_hours
        (replica_id, hour_ms),
    CONSTRAINT ck_cost_rows_costs_something CHECK (nanos > 0),
    CONSTRAINT ck_cost_rows_kind_known CHECK (kind IN ('requests', 'aborted_prefill', 'adapter_load', 'pinned',
        'platform', 'unclaimed', 'idle', 'starting', 'draining', 'lost')),
    CONSTRAINT ck_cost_rows_owner_fits_kind CHECK ((tenant_id <> '') = (kind IN ('requests', 'aborted_prefill',
        'adapter_load', 'pinned')))
);
CREATE INDEX ix_cost_rows_hour_ms ON cost_rows (hour_ms);
"""

WRITTEN_ONCE = (
    "replica_cost_windows", "pool_rates", "outside_prices", "cost_functions", "cost_hours", "cost_rows",
)

FUNCTIONS = """
-- Rows are written in the transaction of their hour. An hour that is there already gets no further row.
CREATE FUNCTION billing_refuse_late_cost_row() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE FUNCTION billing_cost_rows_add_up() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER cost_rows_in_time BEFORE INSERT ON cost_rows
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_late_cost_row();
CREATE CONSTRAINT TRIGGER cost_rows_add_up AFTER INSERT ON cost_hours DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_cost_rows_add_up();
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute(FUNCTIONS)
    for table in WRITTEN_ONCE:
        op.execute(
            f"CREATE TRIGGER {table}_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )


def downgrade() -> None:
    for table in ("cost_rows", "cost_hours", "cost_functions", "outside_prices", "pool_rates",
        "replica_cost_windows"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION billing_cost_rows_add_up()")
    op.execute("DROP FUNCTION billing_refuse_late_cost_row()")
