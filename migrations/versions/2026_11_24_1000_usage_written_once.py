"""Makes usage records insert-only and partitioned by month, adds their sums by hour and month, and closes every way to
add to what is final: entries of old transfers, lines of old invoices, records of old transfers, prices of the past.

Existing invoices keep their rows. Existing records keep their prices and transfers, and become late for the period
after the one that was closed before they arrived.

Revision: 2026_11_24_1000, after 2026_11_23_0940.
"""

import runpy
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "2026_11_24_1000"
down_revision = "2026_11_23_0940"
branch_labels = None
depends_on = None

_COLUMNS = (
    "request_id, tenant_id, key_id, base_model, adapter_id, revision_id, replica_id, outcome, started_at, settled_at,"
    " input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, first_token_ms, duration_ms,"
    " adapter_tier, adapter_load_ms, stall_ms, estimated, price_version_id, input_nanos, cached_input_nanos,"
    " output_nanos, kv_nanos, amount_nanos, transfer_id"
)
_COUNTS = (
    "requests", "estimated_requests", "input_tokens", "cached_tokens", "exact_cached_tokens", "aborted_prefill_tokens",
    "output_tokens", "kv_page_ms", "uncached_requests", "cached_requests", "output_requests", "kv_requests",
    "input_nanos", "cached_input_nanos", "output_nanos", "kv_nanos",
)  # fmt: skip

OLD_GUARDS = """
DROP TRIGGER transfers_sum_to_zero ON transfers;
DROP TRIGGER entries_sum_to_zero ON entries;
DROP TRIGGER invoices_add_up ON invoices;
DROP TRIGGER invoice_lines_add_up ON invoice_lines;
DROP FUNCTION billing_transfer_sums_to_zero();
DROP FUNCTION billing_entries_sum_to_zero();
DROP FUNCTION billing_check_transfer(text);
DROP FUNCTION billing_invoice_adds_up();
DROP FUNCTION billing_invoice_lines_add_up();
DROP FUNCTION billing_check_lines(text);
DROP FUNCTION billing_lock_usage_records();
"""

RECORDS = """
ALTER TABLE usage_records RENAME TO usage_records_before;
CREATE TABLE usage_records (
    request_id varchar COLLATE "C" NOT NULL,
    tenant_id varchar NOT NULL,
    key_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar,
    revision_id varchar,
    rank_class integer,
    replica_id varchar NOT NULL,
    outcome varchar NOT NULL,
    started_at timestamptz NOT NULL,
    settled_at timestamptz NOT NULL,
    late_from timestamptz,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    aborted_prefill_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    first_token_ms bigint,
    duration_ms bigint NOT NULL,
    adapter_tier varchar,
    adapter_load_ms bigint NOT NULL,
    stall_ms bigint NOT NULL,
    estimated boolean NOT NULL,
    price_version_id varchar NOT NULL,
    input_nanos bigint NOT NULL,
    cached_input_nanos bigint NOT NULL,
    output_nanos bigint NOT NULL,
    kv_nanos bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    transfer_id varchar NOT NULL
) PARTITION BY RANGE (request_id);
"""

# The first ten characters of a ULID are its milliseconds in Crockford's base32, as core.ids writes them.
PARTITIONS = """
CREATE FUNCTION billing_request_id_floor(instant timestamptz) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    rest bigint := (extract(epoch FROM instant) * 1000)::bigint;
    body text := '';
BEGIN
    FOR _ IN 1..10 LOOP
        body := substr('0123456789abcdefghjkmnpqrstvwxyz', (rest % 32)::int + 1, 1) || body;
        rest := rest / 32;
    END LOOP;
    RETURN 'req_' || body;
END $$;

-- The months from the given one to some months ahead. Ids outside of all months, such as those of clocks that are far
-- off, are kept in the default partition.
CREATE FUNCTION billing_add_usage_partitions(first timestamptz, months_ahead int) RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    month timestamp := date_trunc('month', first AT TIME ZONE 'UTC');
    last timestamp := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') + make_interval(months => months_ahead);
    name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('billing_add_usage_partitions'));
    WHILE month <= last LOOP
        name := 'usage_records_' || to_char(month, 'YYYY_MM');
        IF to_regclass('partitions.' || name) IS NULL THEN
            EXECUTE format('CREATE TABLE partitions.%I (LIKE usage_records INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
            EXECUTE format(
                'ALTER TABLE usage_records ATTACH PARTITION partitions.%I FOR VALUES FROM (%L) TO (%L)', name,
                billing_request_id_floor(month AT TIME ZONE 'UTC'),
                billing_request_id_floor((month + interval '1 month') AT TIME ZONE 'UTC'));
        END IF;
        month := month + interval '1 month';
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION billing_add_usage_partitions(timestamptz, int) FROM PUBLIC;
"""

GUARDS = """
CREATE FUNCTION billing_refuse_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    final text;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'entries', 'usage_records' THEN
        SELECT t.id INTO final FROM transfers t WHERE t.id IN (SELECT transfer_id FROM added) LIMIT 1;
    WHEN 'invoice_lines' THEN
        SELECT i.id INTO final FROM invoices i WHERE i.id IN (SELECT invoice_id FROM added) LIMIT 1;
    END CASE;
    IF final IS NOT NULL THEN
        RAISE EXCEPTION 'INSERT into % refused: % is final', TG_TABLE_NAME, final USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER entries_not_final AFTER INSERT ON entries REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();
CREATE TRIGGER usage_records_not_final AFTER INSERT ON usage_records REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();
CREATE TRIGGER invoice_lines_not_final AFTER INSERT ON invoice_lines REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();

-- A transfer is inserted after its entries and records, so at commit it is whole: two legs or more that sum to zero,
-- and, for usage, on each tenant's own account exactly what the tenant's records cost.
CREATE FUNCTION billing_transfer_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE CONSTRAINT TRIGGER transfers_are_whole AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_transfer_is_whole();

CREATE FUNCTION billing_invoice_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lines_nanos numeric;
    lines_cents numeric;
BEGIN
    SELECT coalesce(sum(amount_nanos), 0), coalesce(sum(amount_cents), 0) INTO lines_nanos, lines_cents
        FROM invoice_lines WHERE invoice_id = NEW.id;
    IF NEW.amount_nanos <> lines_nanos OR NEW.total_cents <> lines_cents THEN
        RAISE EXCEPTION 'invoice % says % nanos and % cents; its lines % and %', NEW.id,
            NEW.amount_nanos, NEW.total_cents, lines_nanos, lines_cents USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (
        SELECT FROM invoices WHERE tenant_id = NEW.tenant_id AND id <> NEW.id
            AND period_start < NEW.period_end AND NEW.period_start < period_end
    ) THEN
        RAISE EXCEPTION 'invoice % covers time that another invoice of tenant % covers', NEW.id, NEW.tenant_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER invoices_are_whole AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_is_whole();

-- Prices and plans change forwards only: from the start of the transaction on. The first of a plan or of a tenant may
-- begin earlier, because nothing was priced before it.
CREATE FUNCTION billing_refuse_past() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    others boolean;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'price_versions' THEN
        others := EXISTS (SELECT FROM price_versions WHERE plan_id = NEW.plan_id);
    WHEN 'plan_assignments' THEN
        others := EXISTS (SELECT FROM plan_assignments WHERE tenant_id = NEW.tenant_id);
    END CASE;
    IF others AND NEW.effective_from < now() THEN
        RAISE EXCEPTION 'INSERT into % refused: % is in the past', TG_TABLE_NAME, NEW.effective_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER price_versions_not_past BEFORE INSERT ON price_versions
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past();
CREATE TRIGGER plan_assignments_not_past BEFORE INSERT ON plan_assignments
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past();

-- A row trigger, because it is cloned to the partitions.
CREATE FUNCTION billing_refuse_row_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of usage record % refused: records are written once', TG_OP, OLD.request_id
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER usage_records_rows_written_once BEFORE UPDATE OR DELETE ON usage_records
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_row_change();
CREATE TRIGGER usage_records_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""

CONSTRAINTS = (
    ("pk_usage_records", "PRIMARY KEY (request_id)"),
    (
        "ck_usage_records_quantities_possible",
        "CHECK (input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0"
        " AND cached_tokens BETWEEN 0 AND input_tokens)",
    ),
    (
        "ck_usage_records_aborted_prefill_is_part_of_input",
        "CHECK (aborted_prefill_tokens BETWEEN 0 AND input_tokens)",
    ),
    (
        "ck_usage_records_amount_is_sum_of_parts",
        "CHECK (input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0"
        " AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos)",
    ),
    (
        "ck_usage_records_durations_possible",
        "CHECK (first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0)",
    ),
    ("ck_usage_records_estimate_has_cause", "CHECK (NOT estimated OR outcome = 'gateway_gone')"),
    ("ck_usage_records_tier_known", "CHECK (adapter_tier IN ('slot', 'memory', 'disk', 'store'))"),
    ("ck_usage_records_late_is_later", "CHECK (late_from > settled_at)"),
    (
        "fk_usage_records_price_version_id_price_versions",
        "FOREIGN KEY (price_version_id) REFERENCES price_versions (id)",
    ),
    (
        "fk_usage_records_transfer_id_transfers",
        "FOREIGN KEY (transfer_id) REFERENCES transfers (id) DEFERRABLE INITIALLY DEFERRED",
    ),
)

# What an earlier close invoiced before it settled into the period is late for that period; what no close invoiced and
# settled before the last one is late for the open period.
COPY = f"""
INSERT INTO usage_records ({_COLUMNS}, late_from)
SELECT {", ".join(f"u.{name.strip()}" for name in _COLUMNS.split(","))},
    CASE WHEN u.settled_at < coalesce(i.period_start, s.billed_until) THEN coalesce(i.period_start, s.billed_until) END
FROM usage_records_before u
LEFT JOIN invoices i ON i.id = u.invoice_id
LEFT JOIN subscriptions s ON s.tenant_id = u.tenant_id
"""

SUMS = """
INSERT INTO usage_hours
SELECT tenant_id, date_trunc('hour', settled_at, 'UTC'), coalesce(late_from, to_timestamp(0)), key_id, base_model,
    coalesce(adapter_id, ''), coalesce(revision_id, ''), 0, price_version_id,
    count(*) FILTER (WHERE NOT rest), count(*) FILTER (WHERE estimated),
    sum(input_tokens), sum(cached_tokens),
    coalesce(sum(cached_tokens) FILTER (WHERE NOT estimated AND aborted_prefill_tokens = 0), 0),
    sum(aborted_prefill_tokens), sum(output_tokens), sum(kv_page_ms),
    count(DISTINCT request) FILTER (WHERE input_tokens > cached_tokens),
    count(DISTINCT request) FILTER (WHERE cached_tokens > 0),
    count(DISTINCT request) FILTER (WHERE output_tokens > 0),
    count(DISTINCT request) FILTER (WHERE kv_page_ms > 0),
    sum(input_nanos), sum(cached_input_nanos), sum(output_nanos), sum(kv_nanos)
FROM (SELECT *, split_part(request_id, ':', 1) AS request, split_part(request_id, ':', 2) = 'rest' AS rest FROM usage_records) u
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;
INSERT INTO usage_months
SELECT tenant_id, date_trunc('month', settled_at, 'UTC'), key_id,
    sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(amount_nanos)
FROM usage_records GROUP BY 1, 2, 3;
"""

LINE_RULES = (
    (
        "kind_known",
        "kind IN ('input_tokens', 'uncached_input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds')",
    ),
    ("unit_known", "unit IN ('token', 'page_second', 'page_millisecond')"),
    ("amount_is_quantity_times_price", "unit <> 'token' OR amount_nanos = quantity * unit_price_nanos"),
    (
        "kv_amount_is_truncated_product",
        "amount_nanos * 1000::numeric <= quantity * unit_price_nanos * CASE unit WHEN 'page_millisecond' THEN 1 ELSE 1000 END",
    ),
    ("counts_something", "quantity > 0 AND request_count >= 0 AND unit_price_nanos >= 0 AND amount_nanos >= 0"),
    ("cents_within_one", "abs(amount_cents::numeric * 10000000 - amount_nanos) < 10000000"),
)

DROP_GUARDS = """
DROP TRIGGER entries_not_final ON entries;
DROP TRIGGER invoice_lines_not_final ON invoice_lines;
DROP TRIGGER transfers_are_whole ON transfers;
DROP TRIGGER invoices_are_whole ON invoices;
DROP TRIGGER price_versions_not_past ON price_versions;
DROP TRIGGER plan_assignments_not_past ON plan_assignments;
DROP FUNCTION billing_refuse_final();
DROP FUNCTION billing_transfer_is_whole();
DROP FUNCTION billing_invoice_is_whole();
DROP FUNCTION billing_refuse_past();
DROP FUNCTION billing_refuse_row_change();
DROP FUNCTION billing_add_usage_partitions(timestamptz, int);
DROP FUNCTION billing_request_id_floor(timestamptz);
"""

# The table and the rules as they were before this revision, for an empty database.
OLD_TABLE = """
CREATE TABLE usage_records (
    request_id varchar NOT NULL,
    tenant_id varchar NOT NULL,
    key_id varchar NOT NULL,
    base_model varchar NOT NULL,
    adapter_id varchar,
    revision_id varchar,
    replica_id varchar NOT NULL,
    outcome varchar NOT NULL,
    started_at timestamptz NOT NULL,
    settled_at timestamptz NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    kv_page_ms bigint NOT NULL,
    price_version_id varchar NOT NULL REFERENCES price_versions,
    input_nanos bigint NOT NULL,
    cached_input_nanos bigint NOT NULL,
    output_nanos bigint NOT NULL,
    kv_nanos bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    transfer_id varchar NOT NULL CONSTRAINT uq_usage_records_transfer_id UNIQUE REFERENCES transfers,
    invoice_id varchar CONSTRAINT fk_usage_records_invoice_id_invoices
        REFERENCES invoices DEFERRABLE INITIALLY DEFERRED,
    first_token_ms bigint,
    duration_ms bigint NOT NULL,
    adapter_tier varchar,
    adapter_load_ms bigint NOT NULL,
    stall_ms bigint NOT NULL,
    estimated boolean NOT NULL,
    aborted_prefill_tokens bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_usage_records PRIMARY KEY (request_id),
    CONSTRAINT ck_usage_records_aborted_prefill_is_part_of_input
        CHECK (aborted_prefill_tokens BETWEEN 0 AND input_tokens),
    CONSTRAINT ck_usage_records_estimate_has_cause CHECK (NOT estimated OR outcome = 'gateway_gone'),
    CONSTRAINT ck_usage_records_tier_known CHECK (adapter_tier IN ('slot', 'memory', 'disk', 'store')),
    CONSTRAINT ck_usage_records_durations_possible
        CHECK (first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0)
);
CREATE INDEX ix_usage_records_invoice_id ON usage_records (invoice_id);
CREATE INDEX ix_usage_records_tenant_id_settled_at ON usage_records (tenant_id, settled_at);
CREATE INDEX ix_usage_records_unbilled ON usage_records (tenant_id, settled_at) WHERE invoice_id IS NULL;
ALTER TABLE invoice_lines
    ADD CONSTRAINT ck_invoice_lines_ck_invoice_lines_kind_known
        CHECK (kind IN ('input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds')),
    ADD CONSTRAINT ck_invoice_lines_ck_invoice_lines_amount_is_quantity_ti_d0a1
        CHECK (kind = 'kv_page_seconds' OR amount_nanos = quantity::numeric * unit_price_nanos),
    ADD CONSTRAINT ck_invoice_lines_ck_invoice_lines_counts_something
        CHECK (quantity > 0 AND request_count > 0 AND unit_price_nanos >= 0 AND amount_nanos >= 0),
    ADD CONSTRAINT ck_invoice_lines_ck_invoice_lines_cents_are_nearest
        CHECK (abs(amount_cents::numeric * 10000000 - amount_nanos) <= 5000000),
    ADD CONSTRAINT ck_invoice_lines_ck_invoice_lines_kv_amount_is_truncate_55d7
        CHECK (kind <> 'kv_page_seconds' OR amount_nanos::numeric * 1000 BETWEEN
            quantity::numeric * unit_price_nanos - 1998 * request_count::numeric
            AND quantity::numeric * unit_price_nanos);
"""


def upgrade() -> None:
    op.execute("SET LOCAL statement_timeout = 0")
    op.create_table(
        "subscriptions",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("billed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_subscriptions"),
    )
    op.execute(
        "INSERT INTO subscriptions SELECT tenant_id, max(period_end), now() FROM invoices GROUP BY tenant_id"
    )
    _create_sums()
    op.create_table(
        "engine_counts",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("replica_id", "boot_id")),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in (
                "prompt_tokens", "generation_tokens", "probe_prompt_tokens", "probe_generation_tokens", "cached_prompt_tokens",
            )
        ),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "prompt_tokens >= probe_prompt_tokens AND generation_tokens >= probe_generation_tokens"
            " AND probe_prompt_tokens >= 0 AND probe_generation_tokens >= 0 AND cached_prompt_tokens >= 0",
            name=op.f("ck_engine_counts_counts_possible"),
        ),
        sa.PrimaryKeyConstraint("replica_id", "boot_id", "hour", name="pk_engine_counts"),
    )  # fmt: skip
    op.execute(OLD_GUARDS)
    _records()
    _transfers()
    _lines()
    op.execute(GUARDS)
    # Billing knows adapters by id; invoices name them. The view is all that billing may read of the control plane.
    op.execute("CREATE VIEW adapter_names AS SELECT id AS adapter_id, tenant_id, name FROM adapters")


def _create_sums() -> None:
    op.create_table(
        "usage_hours",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("late_from", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.Column(name, sa.String(), nullable=False)
            for name in ("key_id", "base_model", "adapter_id", "revision_id")
        ),
        sa.Column("rank_class", sa.Integer(), nullable=False),
        sa.Column("price_version_id", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")) for name in _COUNTS),
        sa.PrimaryKeyConstraint(
            "tenant_id", "hour", "late_from", "key_id", "base_model", "adapter_id", "revision_id", "rank_class", "price_version_id",
            name="pk_usage_hours",
        ),
    )  # fmt: skip
    op.create_table(
        "usage_months",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("month", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in ("input_tokens", "cached_tokens", "output_tokens", "amount_nanos")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "month", "key_id", name="pk_usage_months"),
    )


def _records() -> None:
    op.execute("CREATE SCHEMA partitions")  # no process may use it: rows are read and written through the parent
    op.execute(RECORDS)
    # The old table's names of constraints and indexes are needed for the new one; indexes of a table go with it.
    op.execute("ALTER TABLE usage_records_before RENAME CONSTRAINT pk_usage_records TO pk_usage_records_before")
    op.execute("ALTER INDEX ix_usage_records_tenant_id_settled_at RENAME TO ix_usage_records_before_settled_at")
    op.execute(PARTITIONS)
    op.execute("CREATE TABLE partitions.usage_records_default PARTITION OF usage_records DEFAULT")
    op.execute(
        "SELECT billing_add_usage_partitions(coalesce(least((SELECT min(settled_at) FROM usage_records_before), now()), now()), 3)"
    )
    op.execute(COPY)
    for name, definition in CONSTRAINTS:
        op.execute(f"ALTER TABLE usage_records ADD CONSTRAINT {name} {definition}")
    op.create_index("ix_usage_records_tenant_id_settled_at", "usage_records", ["tenant_id", "settled_at"])
    op.create_index(
        "ix_usage_records_tenant_id_late_from",
        "usage_records",
        ["tenant_id", "late_from"],
        postgresql_where=sa.text("late_from IS NOT NULL"),
    )
    op.create_index("ix_usage_records_transfer_id", "usage_records", ["transfer_id"])
    op.execute(SUMS)
    op.execute("DROP TABLE usage_records_before")
    op.execute("DROP FUNCTION billing_refuse_record_change()")


def _transfers() -> None:
    op.drop_constraint(op.f("ck_transfers_ck_transfers_cause_fits_kind"), "transfers")
    op.drop_constraint(op.f("uq_transfers_request_id"), "transfers")
    op.drop_column("transfers", "request_id")
    op.create_check_constraint(
        op.f("ck_transfers_cause_fits_kind"), "transfers", "(kind = 'invoice') = (invoice_id IS NOT NULL)"
    )
    op.drop_constraint(op.f("fk_entries_transfer_id_transfers"), "entries")
    op.create_foreign_key(
        op.f("fk_entries_transfer_id_transfers"), "entries", "transfers", ["transfer_id"], ["id"],
        deferrable=True, initially="DEFERRED",
    )  # fmt: skip


def _lines() -> None:
    for name in (
        "ck_invoice_lines_kind_known", "ck_invoice_lines_amount_is_quantity_ti_d0a1", "ck_invoice_lines_cents_are_nearest",
        "ck_invoice_lines_kv_amount_is_truncate_55d7", "ck_invoice_lines_counts_something",
    ):  # fmt: skip
        op.drop_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines")  # their table was named twice
    op.alter_column("invoice_lines", "quantity", type_=sa.Numeric(38, 3))
    op.add_column("invoice_lines", sa.Column("adapter_name", sa.String(), nullable=True))
    op.add_column("invoice_lines", sa.Column("late_for", sa.DateTime(timezone=True), nullable=True))
    op.add_column("invoice_lines", sa.Column("unit", sa.String(), nullable=True))
    op.execute("ALTER TABLE invoice_lines DISABLE TRIGGER invoice_lines_written_once")
    op.execute(
        "UPDATE invoice_lines SET unit = CASE kind WHEN 'kv_page_seconds' THEN 'page_millisecond' ELSE 'token' END"
    )
    op.execute("ALTER TABLE invoice_lines ENABLE TRIGGER invoice_lines_written_once")
    op.alter_column("invoice_lines", "unit", nullable=False)
    for name, rule in LINE_RULES:
        op.create_check_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines", rule)
    op.drop_constraint(op.f("fk_invoice_lines_invoice_id_invoices"), "invoice_lines")
    op.create_foreign_key(
        op.f("fk_invoice_lines_invoice_id_invoices"), "invoice_lines", "invoices", ["invoice_id"], ["id"],
        deferrable=True, initially="DEFERRED",
    )  # fmt: skip


def downgrade() -> None:
    used = sa.text("SELECT EXISTS (SELECT FROM usage_records) OR EXISTS (SELECT FROM invoices)")
    if op.get_bind().execute(used).scalar_one():
        # One transfer moves many records, and an invoice is rounded as a whole: the form before has no place for that.
        raise RuntimeError("2026_11_24_1000 cannot be undone once usage is recorded: restore a backup from before it")
    op.execute("DROP VIEW adapter_names")
    for table in ("usage_records", "usage_hours", "usage_months", "subscriptions", "engine_counts"):
        op.drop_table(table)
    op.execute("DROP SCHEMA partitions")
    op.execute(DROP_GUARDS)
    op.drop_constraint(op.f("ck_transfers_cause_fits_kind"), "transfers")
    op.add_column("transfers", sa.Column("request_id", sa.String(), nullable=True))
    op.create_unique_constraint(op.f("uq_transfers_request_id"), "transfers", ["request_id"])
    op.create_check_constraint(
        op.f("ck_transfers_ck_transfers_cause_fits_kind"),
        "transfers",
        "(kind = 'usage') = (request_id IS NOT NULL) AND (kind = 'invoice') = (invoice_id IS NOT NULL)",
    )
    for table, column, other in (("entries", "transfer_id", "transfers"), ("invoice_lines", "invoice_id", "invoices")):
        name = op.f(f"fk_{table}_{column}_{other}")
        op.drop_constraint(name, table)
        op.create_foreign_key(name, table, other, [column], ["id"])
    for name, _ in LINE_RULES:
        op.drop_constraint(op.f(f"ck_invoice_lines_{name}"), "invoice_lines")
    for column in ("adapter_name", "late_for", "unit"):
        op.drop_column("invoice_lines", column)
    op.alter_column("invoice_lines", "quantity", type_=sa.BigInteger())
    op.execute(OLD_TABLE)
    before = runpy.run_path(str(Path(__file__).with_name("2026_11_20_0610_billing.py")))
    op.execute(before["FUNCTIONS"].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    op.execute(before["TRIGGERS"])
    op.execute(runpy.run_path(str(Path(__file__).with_name("2026_11_23_0940_lock_usage_records.py")))["FUNCTION"])
