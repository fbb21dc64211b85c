CREATE TABLE billing_profiles (
    tenant_id varchar NOT NULL,
    version integer NOT NULL,
    details jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_billing_profiles PRIMARY KEY (tenant_id, version)
);

CREATE TABLE sellers (
    version SERIAL CONSTRAINT pk_sellers PRIMARY KEY,
    details jsonb NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE tax_rates (
    country varchar NOT NULL,
    name varchar NOT NULL,
    effective_from timestamptz NOT NULL,
    rate_ppm integer NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_tax_rates PRIMARY KEY (country, name, effective_from),
    CONSTRAINT ck_tax_rates_rate_possible CHECK (rate_ppm BETWEEN 0 AND 1000000)
);

CREATE TRIGGER billing_profiles_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON billing_profiles FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER sellers_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON sellers FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER tax_rates_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON tax_rates FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
