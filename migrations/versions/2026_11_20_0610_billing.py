"""The tables of billing: prices, usage records, the append-only double-entry ledger and immutable invoices.

Revision: 2026_11_20_0610, after 2026_11_20_0600.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_20_0610"
down_revision = "2026_11_20_0600"
branch_labels = None
depends_on = None

WRITTEN_ONCE = ("price_versions", "plan_assignments", "accounts", "transfers", "entries", "invoices", "invoice_lines")

FUNCTIONS = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % refused: its rows are written once; post a correction instead', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

-- The one change a record may see: from no invoice to an invoice that is being made, in the same transaction.
CREATE FUNCTION billing_refuse_record_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before usage_records := OLD;
BEGIN
    before.invoice_id := NEW.invoice_id;
    IF OLD.invoice_id IS NOT NULL OR NEW.invoice_id IS NULL OR before IS DISTINCT FROM NEW THEN
        RAISE EXCEPTION 'UPDATE of usage record % refused: only its invoice may be set, once', OLD.request_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF EXISTS (SELECT FROM invoices WHERE id = NEW.invoice_id) THEN
        RAISE EXCEPTION 'UPDATE of usage record % refused: invoice % is final', OLD.request_id, NEW.invoice_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION billing_check_transfer(wanted text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    legs bigint;
    total numeric;
BEGIN
    SELECT count(*), coalesce(sum(amount_nanos), 0) INTO legs, total FROM entries WHERE transfer_id = wanted;
    IF legs < 2 OR total <> 0 THEN
        RAISE EXCEPTION 'transfer % has % legs that sum to %; it needs two or more that sum to zero', wanted, legs, total
            USING ERRCODE = 'check_violation';
    END IF;
END $$;
CREATE FUNCTION billing_transfer_sums_to_zero() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM billing_check_transfer(NEW.id); RETURN NULL; END $$;
CREATE FUNCTION billing_entries_sum_to_zero() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM billing_check_transfer(NEW.transfer_id); RETURN NULL; END $$;

CREATE FUNCTION billing_check_lines(wanted text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    invoice invoices;
    lines_nanos numeric;
    lines_cents numeric;
BEGIN
    SELECT * INTO STRICT invoice FROM invoices WHERE id = wanted;
    SELECT coalesce(sum(amount_nanos), 0), coalesce(sum(amount_cents), 0) INTO lines_nanos, lines_cents
        FROM invoice_lines WHERE invoice_id = wanted;
    IF invoice.amount_nanos <> lines_nanos OR invoice.total_cents <> lines_cents THEN
        RAISE EXCEPTION 'invoice % says % nanos and % cents; its lines % and %', wanted,
            invoice.amount_nanos, invoice.total_cents, lines_nanos, lines_cents USING ERRCODE = 'check_violation';
    END IF;
END $$;
CREATE FUNCTION billing_invoice_lines_add_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM billing_check_lines(NEW.invoice_id); RETURN NULL; END $$;
CREATE FUNCTION billing_invoice_adds_up() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    records_nanos numeric;
BEGIN
    PERFORM billing_check_lines(NEW.id);
    SELECT coalesce(sum(amount_nanos), 0) INTO records_nanos FROM usage_records WHERE invoice_id = NEW.id;
    IF NEW.amount_nanos <> records_nanos THEN
        RAISE EXCEPTION 'invoice % says % nanos; its usage records %', NEW.id, NEW.amount_nanos, records_nanos
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
"""

TRIGGERS = """
CREATE TRIGGER usage_records_change BEFORE UPDATE ON usage_records
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_record_change();
CREATE TRIGGER usage_records_written_once BEFORE DELETE OR TRUNCATE ON usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE CONSTRAINT TRIGGER transfers_sum_to_zero AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_transfer_sums_to_zero();
CREATE CONSTRAINT TRIGGER entries_sum_to_zero AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_entries_sum_to_zero();
CREATE CONSTRAINT TRIGGER invoices_add_up AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_adds_up();
CREATE CONSTRAINT TRIGGER invoice_lines_add_up AFTER INSERT ON invoice_lines DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_lines_add_up();
"""


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.CheckConstraint(
            "(tenant_id IS NULL) = (kind IN ('revenue', 'rounding'))", name="ck_accounts_owner_fits_kind"
        ),
        sa.CheckConstraint(
            "kind IN ('usage_unbilled', 'receivable', 'revenue', 'rounding')", name="ck_accounts_kind_known"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("kind", "tenant_id", name="uq_accounts_kind_tenant_id", postgresql_nulls_not_distinct=True),
    )
    op.create_table(
        "invoices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("currency", sa.String(), nullable=False),
        sa.Column("total_cents", sa.BigInteger(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("currency = 'usd'", name="ck_invoices_currency_known"),
        sa.CheckConstraint("status = 'finalised'", name="ck_invoices_status_known"),
        sa.CheckConstraint("number > 0", name="ck_invoices_number_positive"),
        sa.CheckConstraint("period_start < period_end", name="ck_invoices_period_has_length"),
        sa.CheckConstraint("total_cents >= 0 AND amount_nanos >= 0", name="ck_invoices_totals_not_negative"),
        sa.PrimaryKeyConstraint("id", name="pk_invoices"),
        sa.UniqueConstraint("number", name="uq_invoices_number"),
        sa.UniqueConstraint("tenant_id", "period_end", name="uq_invoices_tenant_id_period_end"),
    )
    op.create_table(
        "plan_assignments",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "effective_from", name="pk_plan_assignments"),
    )
    op.create_table(
        "price_versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("input_nanos", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_nanos", sa.BigInteger(), nullable=False),
        sa.Column("output_nanos", sa.BigInteger(), nullable=False),
        sa.Column("kv_page_second_nanos", sa.BigInteger(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_page_second_nanos >= 0",
            name="ck_price_versions_prices_not_negative",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_price_versions"),
        sa.UniqueConstraint("plan_id", "effective_from", name="uq_price_versions_plan_id_effective_from"),
    )
    op.create_table(
        "invoice_lines",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("invoice_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("adapter_id", sa.String(), nullable=True),
        sa.Column("price_version_id", sa.String(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("unit_price_nanos", sa.BigInteger(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("request_count", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind <> 'kv_page_seconds' OR amount_nanos::numeric * 1000 BETWEEN quantity::numeric * unit_price_nanos - 999 * request_count::numeric AND quantity::numeric * unit_price_nanos",
            name="ck_invoice_lines_kv_amount_is_truncated_product",
        ),
        sa.CheckConstraint(
            "kind = 'kv_page_seconds' OR amount_nanos = quantity::numeric * unit_price_nanos",
            name="ck_invoice_lines_amount_is_quantity_times_price",
        ),
        sa.CheckConstraint(
            "kind IN ('input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds')",
            name="ck_invoice_lines_kind_known",
        ),
        sa.CheckConstraint(
            "abs(amount_cents::numeric * 10000000 - amount_nanos) <= 5000000", name="ck_invoice_lines_cents_are_nearest"
        ),
        sa.CheckConstraint(
            "quantity > 0 AND request_count > 0 AND unit_price_nanos >= 0 AND amount_nanos >= 0",
            name="ck_invoice_lines_counts_something",
        ),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_invoice_lines_invoice_id_invoices"),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name="fk_invoice_lines_price_version_id_price_versions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_lines"),
        sa.UniqueConstraint("invoice_id", "position", name="uq_invoice_lines_invoice_id_position"),
    )
    op.create_table(
        "transfers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("invoice_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(kind = 'usage') = (request_id IS NOT NULL) AND (kind = 'invoice') = (invoice_id IS NOT NULL)",
            name="ck_transfers_cause_fits_kind",
        ),
        sa.CheckConstraint("kind IN ('usage', 'invoice')", name="ck_transfers_kind_known"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_transfers_invoice_id_invoices"),
        sa.PrimaryKeyConstraint("id", name="pk_transfers"),
        sa.UniqueConstraint("invoice_id", name="uq_transfers_invoice_id"),
        sa.UniqueConstraint("request_id", name="uq_transfers_request_id"),
    )
    op.create_table(
        "entries",
        sa.Column("transfer_id", sa.String(), nullable=False),
        sa.Column("account_id", sa.String(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_entries_account_id_accounts"),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_entries_transfer_id_transfers"),
        sa.PrimaryKeyConstraint("transfer_id", "account_id", name="pk_entries"),
    )
    op.create_index("ix_entries_account_id", "entries", ["account_id"])
    op.create_table(
        "usage_records",
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("adapter_id", sa.String(), nullable=True),
        sa.Column("revision_id", sa.String(), nullable=True),
        sa.Column("replica_id", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("kv_page_ms", sa.BigInteger(), nullable=False),
        sa.Column("price_version_id", sa.String(), nullable=False),
        sa.Column("input_nanos", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_nanos", sa.BigInteger(), nullable=False),
        sa.Column("output_nanos", sa.BigInteger(), nullable=False),
        sa.Column("kv_nanos", sa.BigInteger(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("transfer_id", sa.String(), nullable=False),
        sa.Column("invoice_id", sa.String(), nullable=True),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0 AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos",
            name="ck_usage_records_amount_is_sum_of_parts",
        ),
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens",
            name="ck_usage_records_quantities_possible",
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"],
            ["invoices.id"],
            name="fk_usage_records_invoice_id_invoices",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name="fk_usage_records_price_version_id_price_versions"
        ),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_usage_records_transfer_id_transfers"),
        sa.PrimaryKeyConstraint("request_id", name="pk_usage_records"),
        sa.UniqueConstraint("transfer_id", name="uq_usage_records_transfer_id"),
    )
    op.create_index("ix_usage_records_invoice_id", "usage_records", ["invoice_id"])
    op.create_index("ix_usage_records_tenant_id_settled_at", "usage_records", ["tenant_id", "settled_at"])
    op.create_index(
        "ix_usage_records_unbilled",
        "usage_records",
        ["tenant_id", "settled_at"],
        postgresql_where=sa.text("invoice_id IS NULL"),
    )
    op.execute(FUNCTIONS)
    op.execute(TRIGGERS)
    for table in WRITTEN_ONCE:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )


def downgrade() -> None:
    for table in (
        "usage_records", "entries", "transfers", "invoice_lines", "price_versions", "plan_assignments", "invoices", "accounts",
    ):  # fmt: skip
        op.drop_table(table)
    for function in (
        "billing_refuse_change()", "billing_refuse_record_change()", "billing_transfer_sums_to_zero()",
        "billing_entries_sum_to_zero()", "billing_check_transfer(text)", "billing_invoice_adds_up()",
        "billing_invoice_lines_add_up()", "billing_check_lines(text)",
    ):  # fmt: skip
        op.execute(f"DROP FUNCTION {function}")
