CREATE TABLE discounts (
    id varchar NOT NULL CONSTRAINT pk_discounts PRIMARY KEY,
    tenant_id varchar NOT NULL,
    name varchar NOT NULL,
    percent_hundredths integer,
    amount_nanos bigint,
    duration varchar NOT NULL,
    periods integer,
    effective_from timestamptz NOT NULL,
    expires_at timestamptz,
    created_at timestamptz NOT NULL,
    scope varchar DEFAULT 'all' NOT NULL,
    CONSTRAINT ck_discounts_percent_or_amount CHECK ((percent_hundredths IS NULL) <> (amount_nanos IS NULL)),
    CONSTRAINT ck_discounts_percent_possible CHECK (percent_hundredths BETWEEN 1 AND 10000),
    CONSTRAINT ck_discounts_amount_positive CHECK (amount_nanos > 0),
    CONSTRAINT ck_discounts_duration_known CHECK (duration IN ('once', 'periods', 'forever')),
    CONSTRAINT ck_discounts_periods_fit CHECK ((duration = 'periods') = (periods IS NOT NULL) AND periods > 0),
    CONSTRAINT ck_discounts_expires_later CHECK (expires_at > effective_from),
    CONSTRAINT ck_discounts_scope_known CHECK (scope IN ('usage', 'fees', 'all'))
);
CREATE INDEX ix_discounts_tenant_id ON discounts (tenant_id);

CREATE TABLE subscriptions (
    tenant_id varchar NOT NULL CONSTRAINT pk_subscriptions PRIMARY KEY,
    billed_until timestamptz,
    created_at timestamptz NOT NULL,
    ended_at timestamptz
);

CREATE TABLE tenant_calendars (
    tenant_id varchar NOT NULL,
    effective_from timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    interval varchar NOT NULL,
    zone varchar NOT NULL,
    anchor DATE,
    CONSTRAINT pk_tenant_calendars PRIMARY KEY (tenant_id, effective_from, created_at),
    CONSTRAINT ck_tenant_calendars_interval_known CHECK (interval IN ('week', 'month', 'quarter', 'year'))
);

CREATE TABLE discount_ends (
    discount_id varchar NOT NULL
        CONSTRAINT pk_discount_ends PRIMARY KEY CONSTRAINT fk_discount_ends_discount_id_discounts REFERENCES discounts (id),
    ended_at timestamptz NOT NULL
);

-- What is invoiced grows with time and never shrinks; a tenant leaves once.
CREATE FUNCTION billing_only_forwards()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NEW.tenant_id <> OLD.tenant_id OR NEW.billed_until > clock_timestamp()
        OR (OLD.billed_until IS NOT NULL AND (NEW.billed_until IS NULL OR NEW.billed_until < OLD.billed_until))
        OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS NULL)
    THEN
        RAISE EXCEPTION 'UPDATE of the subscription of % refused: what is invoiced, and the end, move only forwards',
            OLD.tenant_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER discount_ends_not_past BEFORE INSERT ON discount_ends FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER discount_ends_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON discount_ends FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER discounts_not_past BEFORE INSERT ON discounts FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER discounts_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON discounts FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER subscriptions_only_forwards BEFORE UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION billing_only_forwards();
CREATE TRIGGER tenant_calendars_not_past BEFORE INSERT ON tenant_calendars FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
CREATE TRIGGER tenant_calendars_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON tenant_calendars FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
