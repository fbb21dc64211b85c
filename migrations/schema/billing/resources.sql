CREATE TABLE metered_hours (
    kind varchar NOT NULL,
    hour timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_metered_hours PRIMARY KEY (kind, hour),
    CONSTRAINT ck_metered_hours_kind_known CHECK (kind IN ('adapter_storage', 'pinned_slots', 'cold_loads')),
    CONSTRAINT ck_metered_hours_hour_is_whole CHECK (hour = date_trunc('hour', hour, 'UTC')),
    CONSTRAINT ck_metered_hours_hour_has_ended CHECK (created_at >= hour + interval '1 hour')
);

CREATE TABLE replica_revisions (
    replica_id varchar NOT NULL,
    revision_id varchar NOT NULL,
    request_id varchar NOT NULL,
    adapter_tier varchar,
    hour timestamptz NOT NULL,
    CONSTRAINT pk_replica_revisions PRIMARY KEY (replica_id, revision_id)
);

CREATE TABLE resource_hours (
    tenant_id varchar NOT NULL,
    hour timestamptz NOT NULL,
    kind varchar NOT NULL,
    adapter_id varchar NOT NULL,
    rank_class integer NOT NULL,
    base_model varchar NOT NULL,
    units bigint NOT NULL,
    counted_at timestamptz NOT NULL,
    CONSTRAINT pk_resource_hours PRIMARY KEY (tenant_id, hour, kind, adapter_id, rank_class),
    CONSTRAINT ck_resource_hours_kind_known CHECK (kind IN ('adapter_storage', 'pinned_slots', 'cold_loads')),
    CONSTRAINT ck_resource_hours_counts_something CHECK (units > 0),
    CONSTRAINT ck_resource_hours_hour_is_whole CHECK (hour = date_trunc('hour', hour, 'UTC')),
    CONSTRAINT ck_resource_hours_counted_later CHECK (counted_at >= hour)
);
CREATE INDEX ix_resource_hours_kind_hour ON resource_hours (kind, hour);
CREATE INDEX ix_resource_hours_tenant_id_counted_at ON resource_hours (tenant_id, counted_at);

CREATE FUNCTION billing_refuse_metered_hour()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM metered_hours WHERE kind = NEW.kind AND hour = NEW.hour) THEN
        RAISE EXCEPTION 'INSERT into resource_hours refused: % of % is metered', NEW.kind, NEW.hour
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER metered_hours_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON metered_hours FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER replica_revisions_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON replica_revisions FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER resource_hours_metered_once BEFORE INSERT ON resource_hours FOR EACH ROW EXECUTE FUNCTION billing_refuse_metered_hour();
CREATE TRIGGER resource_hours_not_invoiced BEFORE INSERT ON resource_hours FOR EACH ROW EXECUTE FUNCTION billing_refuse_invoiced_time();
CREATE TRIGGER resource_hours_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON resource_hours FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
