CREATE TABLE spend_ceilings (
    tenant_id varchar NOT NULL CONSTRAINT pk_spend_ceilings PRIMARY KEY,
    revision bigint NOT NULL,
    ceiling_nanos bigint,
    balance_nanos bigint NOT NULL,
    unbilled_nanos bigint NOT NULL,
    receivable_nanos bigint NOT NULL,
    receivable_entries bigint NOT NULL,
    recheck_at timestamptz,
    to_publish boolean NOT NULL,
    computed_at timestamptz NOT NULL,
    CONSTRAINT ck_spend_ceilings_ceiling_not_negative CHECK (ceiling_nanos >= 0)
);
CREATE INDEX ix_spend_ceilings_recheck_at ON spend_ceilings (recheck_at);
CREATE INDEX ix_spend_ceilings_to_publish ON spend_ceilings (tenant_id) WHERE to_publish;

CREATE TABLE spend_limits (
    id varchar NOT NULL CONSTRAINT pk_spend_limits PRIMARY KEY,
    tenant_id varchar NOT NULL,
    scope varchar NOT NULL,
    subject_id varchar NOT NULL,
    window_kind varchar NOT NULL,
    amount_nanos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    raised_at_nanos bigint DEFAULT 0 NOT NULL,
    CONSTRAINT uq_spend_limits_tenant_id_scope_subject_id_window_kind UNIQUE (tenant_id, scope, subject_id, window_kind),
    CONSTRAINT ck_spend_limits_scope_known CHECK (scope IN ('tenant', 'key', 'adapter')),
    CONSTRAINT ck_spend_limits_subject_fits_scope CHECK ((subject_id = '') = (scope = 'tenant')),
    CONSTRAINT ck_spend_limits_window_known CHECK (window_kind IN ('day', 'month')),
    CONSTRAINT ck_spend_limits_amount_not_negative CHECK (amount_nanos >= 0)
);

CREATE TABLE spending_terms (
    tenant_id varchar NOT NULL CONSTRAINT pk_spending_terms PRIMARY KEY,
    mode varchar NOT NULL,
    credit_limit_nanos bigint,
    invoice_threshold_nanos bigint,
    balance_floors_nanos bigint[] NOT NULL,
    top_up_cents bigint,
    top_up_floor_nanos bigint,
    top_up_month_cents_max bigint,
    updated_at timestamptz NOT NULL,
    CONSTRAINT ck_spending_terms_mode_known CHECK (mode IN ('prepaid', 'postpaid')),
    CONSTRAINT ck_spending_terms_credit_limit_not_negative CHECK (credit_limit_nanos >= 0),
    CONSTRAINT ck_spending_terms_invoice_threshold_positive CHECK (invoice_threshold_nanos > 0),
    CONSTRAINT ck_spending_terms_few_floors CHECK (cardinality(balance_floors_nanos) <= 10),
    CONSTRAINT ck_spending_terms_top_up_is_whole CHECK (
        (top_up_cents IS NULL) = (top_up_floor_nanos IS NULL)
        AND (top_up_cents IS NULL) = (top_up_month_cents_max IS NULL)),
    CONSTRAINT ck_spending_terms_top_up_possible CHECK (
        top_up_cents > 0 AND top_up_floor_nanos >= 0 AND top_up_month_cents_max >= top_up_cents)
);
