CREATE TABLE plan_assignments (
    tenant_id varchar NOT NULL,
    effective_from timestamptz NOT NULL,
    plan_id varchar NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_plan_assignments PRIMARY KEY (tenant_id, effective_from, created_at)
);

CREATE TABLE price_versions (
    id varchar NOT NULL CONSTRAINT pk_price_versions PRIMARY KEY,
    plan_id varchar NOT NULL,
    effective_from timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    card jsonb NOT NULL,
    CONSTRAINT uq_price_versions_plan_id_effective_from UNIQUE (plan_id, effective_from)
);

CREATE TABLE price_overrides (
    id varchar NOT NULL CONSTRAINT pk_price_overrides PRIMARY KEY,
    tenant_id varchar NOT NULL,
    price_version_id varchar
        CONSTRAINT fk_price_overrides_price_version_id_price_versions REFERENCES price_versions (id),
    effective_from timestamptz NOT NULL,
    expires_at timestamptz,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_price_overrides_expires_later CHECK (expires_at > effective_from)
);
CREATE INDEX ix_price_overrides_tenant_id ON price_overrides (tenant_id);

CREATE TABLE withdrawn_price_versions (
    price_version_id varchar NOT NULL
        CONSTRAINT pk_withdrawn_price_versions PRIMARY KEY CONSTRAINT fk_withdrawn_price_versions_price_version_id_price_versions REFERENCES price_versions (id),
    withdrawn_at timestamptz NOT NULL
);

CREATE FUNCTION billing_past()
    RETURNS timestamptz LANGUAGE sql SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT greatest(now(), clock_timestamp() - interval '1 min')
$$;

CREATE FUNCTION billing_refuse_begun_version()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM price_versions WHERE id = NEW.price_version_id AND effective_from <= clock_timestamp()
    ) THEN
        RAISE EXCEPTION 'INSERT into % refused: the version % has begun', TG_TABLE_NAME, NEW.price_version_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

-- Prices and plans change forwards only: from the start of the transaction on. The first of a plan or of a tenant may
-- begin earlier, because nothing was priced before it.
CREATE FUNCTION billing_refuse_past()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    others boolean;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'price_versions' THEN
        others := EXISTS (SELECT FROM price_versions WHERE plan_id = NEW.plan_id);
    WHEN 'plan_assignments' THEN
        others := EXISTS (SELECT FROM plan_assignments WHERE tenant_id = NEW.tenant_id);
    END CASE;
    IF others AND NEW.effective_from < billing_past() THEN
        RAISE EXCEPTION 'INSERT into % refused: % is in the past', TG_TABLE_NAME, NEW.effective_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER plan_assignments_not_past BEFORE INSERT ON plan_assignments FOR EACH ROW EXECUTE FUNCTION billing_refuse_past();
CREATE TRIGGER plan_assignments_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON plan_assignments FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER price_overrides_not_past BEFORE INSERT ON price_overrides FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER price_overrides_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON price_overrides FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER price_versions_not_past BEFORE INSERT ON price_versions FOR EACH ROW EXECUTE FUNCTION billing_refuse_past();
CREATE TRIGGER price_versions_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON price_versions FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER withdrawn_price_versions_not_begun BEFORE INSERT ON withdrawn_price_versions FOR EACH ROW EXECUTE FUNCTION billing_refuse_begun_version();
CREATE TRIGGER withdrawn_price_versions_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON withdrawn_price_versions FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
