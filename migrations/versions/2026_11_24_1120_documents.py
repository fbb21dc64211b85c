"""Gives documents (invoices, credit notes) their chain, and invoices their tax, parties, events and corrections.

Invoices of before keep their numbers and become the start of the chain, in the order of their numbers; each one gets the
events of an open invoice, or of a paid one if nothing is due.

Revision: 2026_11_24_1120, after 2026_11_24_1110.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2026_11_24_1120"
down_revision = "2026_11_24_1110"
branch_labels = None
depends_on = None

_INSERT_ONLY = (
    "documents", "invoice_events", "invoice_credits", "invoice_tax_lines", "credit_notes", "credit_note_tax_lines",
    "carried_periods", "sellers", "billing_profiles", "tax_rates",
)  # fmt: skip
_PARTS = ("invoice_credits", "invoice_tax_lines", "credit_note_tax_lines")

# The chain of the invoices that exist. The content is format 1 of billing.invoices.content.
CHAIN = """
DO $$
DECLARE
    invoice record;
    place bigint := 0;
    content text;
    previous text := repeat('0', 64);
    link text;
BEGIN
    FOR invoice IN SELECT id, number, tenant_id FROM invoices_before ORDER BY number LOOP
        place := place + 1;
        SELECT encode(sha256(convert_to(jsonb_strip_nulls(jsonb_build_object(
            'invoice', to_jsonb(i),
            'lines', (SELECT jsonb_agg(to_jsonb(l) ORDER BY l.position) FROM invoice_lines l WHERE l.invoice_id = i.id),
            'credits', NULL,
            'taxes', NULL
        ))::text, 'UTF8')), 'hex') INTO content FROM invoices i WHERE i.id = invoice.id;
        link := encode(sha256(convert_to(
            concat_ws('|', place, 'invoice', invoice.number, invoice.id, 1, content, previous), 'UTF8')), 'hex');
        INSERT INTO documents VALUES (place, 'invoice', invoice.number, invoice.id, invoice.tenant_id, 1, content,
            previous, link, clock_timestamp());
        previous := link;
    END LOOP;
END $$;
INSERT INTO invoice_events (invoice_id, seq, kind, amount_cents, surplus_cents, status, amount_due_cents, paid_cents,
    credited_cents, created_at)
SELECT id, 1, 'finalized', total_cents, 0, 'finalized', total_cents, 0, 0, created_at FROM invoices
UNION ALL
SELECT id, 2, 'open', 0, 0, CASE WHEN total_cents = 0 THEN 'paid' ELSE 'open' END, total_cents, 0, 0, created_at
FROM invoices;
"""

INVOICE_IS_WHOLE = """
CREATE OR REPLACE FUNCTION billing_invoice_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lines_nanos numeric;
    lines_cents numeric;
    credits_cents numeric;
    taxes_cents numeric;
BEGIN
    SELECT coalesce(sum(amount_nanos), 0), coalesce(sum(amount_cents), 0) INTO lines_nanos, lines_cents
        FROM invoice_lines WHERE invoice_id = NEW.id;
    SELECT coalesce(sum(amount_cents), 0) INTO credits_cents FROM invoice_credits WHERE invoice_id = NEW.id;
    SELECT coalesce(sum(tax_cents), 0) INTO taxes_cents FROM invoice_tax_lines WHERE invoice_id = NEW.id;
    IF NEW.amount_nanos <> lines_nanos OR NEW.net_cents <> lines_cents - credits_cents OR NEW.tax_cents <> taxes_cents THEN
        RAISE EXCEPTION 'invoice % says % nanos, % cents net and % cents of tax; its parts %, % and %', NEW.id,
            NEW.amount_nanos, NEW.net_cents, NEW.tax_cents, lines_nanos, lines_cents - credits_cents, taxes_cents
            USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (SELECT FROM invoice_tax_lines WHERE invoice_id = NEW.id AND base_cents <> NEW.net_cents) THEN
        RAISE EXCEPTION 'invoice % has a tax on another amount than its net %', NEW.id, NEW.net_cents
            USING ERRCODE = 'check_violation';
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
"""

INVOICE_WAS_WHOLE = """
CREATE OR REPLACE FUNCTION billing_invoice_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""

GUARDS = """
-- The parts of a document are written before it, so what exists accepts no further part.
CREATE FUNCTION billing_refuse_part_of_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    final text;
BEGIN
    IF TG_TABLE_NAME = 'credit_note_tax_lines' THEN
        SELECT n.id INTO final FROM credit_notes n WHERE n.id IN (SELECT credit_note_id FROM added) LIMIT 1;
    ELSE
        SELECT i.id INTO final FROM invoices i WHERE i.id IN (SELECT invoice_id FROM added) LIMIT 1;
    END IF;
    IF final IS NOT NULL THEN
        RAISE EXCEPTION 'INSERT into % refused: % is final', TG_TABLE_NAME, final USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

-- Each document extends the chain by one link, and the numbers of its kind by one.
CREATE FUNCTION billing_document_follows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last documents;
    newest bigint;
BEGIN
    SELECT * INTO last FROM documents ORDER BY position DESC LIMIT 1;
    SELECT max(number) INTO newest FROM documents WHERE kind = NEW.kind;
    IF NEW.position <> coalesce(last.position, 0) + 1 OR NEW.number <> coalesce(newest, 0) + 1
        OR NEW.previous_sha256 <> coalesce(last.sha256, repeat('0', 64))
        OR NEW.sha256 <> encode(sha256(convert_to(concat_ws('|', NEW.position, NEW.kind, NEW.number, NEW.document_id,
            NEW.content_format, NEW.content_sha256, NEW.previous_sha256), 'UTF8')), 'hex')
    THEN
        RAISE EXCEPTION 'document % does not follow document %', NEW.document_id, last.document_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER documents_follow BEFORE INSERT ON documents FOR EACH ROW EXECUTE FUNCTION billing_document_follows();

CREATE FUNCTION billing_has_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM documents WHERE document_id = NEW.id AND tenant_id = NEW.tenant_id) THEN
        RAISE EXCEPTION '% has no number', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER invoices_have_numbers AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_has_number();
CREATE CONSTRAINT TRIGGER credit_notes_have_numbers AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_has_number();

-- All notes of an invoice together credit at most its net and its tax, and of a line at most its amount.
CREATE FUNCTION billing_credit_note_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    invoice invoices;
    taxes_cents numeric;
    noted_net numeric;
    noted_tax numeric;
BEGIN
    SELECT * INTO STRICT invoice FROM invoices WHERE id = NEW.invoice_id;
    SELECT coalesce(sum(tax_cents), 0) INTO taxes_cents FROM credit_note_tax_lines WHERE credit_note_id = NEW.id;
    SELECT sum(net_cents), sum(tax_cents) INTO noted_net, noted_tax FROM credit_notes WHERE invoice_id = NEW.invoice_id;
    IF NEW.tax_cents <> taxes_cents OR NEW.tenant_id <> invoice.tenant_id THEN
        RAISE EXCEPTION 'credit note % does not agree with its taxes or its invoice', NEW.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF noted_net > invoice.net_cents OR noted_tax > invoice.tax_cents THEN
        RAISE EXCEPTION 'credit notes of invoice % exceed it', NEW.invoice_id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.line_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM invoice_lines WHERE id = NEW.line_id AND invoice_id = NEW.invoice_id
            AND amount_cents >= (SELECT sum(net_cents) FROM credit_notes WHERE line_id = NEW.line_id)
    ) THEN
        RAISE EXCEPTION 'credit notes of line % exceed it', NEW.line_id USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (SELECT FROM invoice_events WHERE credit_note_id = NEW.id AND invoice_id = NEW.invoice_id) THEN
        RAISE EXCEPTION 'credit note % has no event', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER credit_notes_are_whole AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_credit_note_is_whole();

-- An event continues the one before it: the same rules as billing.invoices.statuses.
CREATE FUNCTION billing_invoice_event_follows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    total bigint;
    last invoice_events;
    due bigint;
    paid bigint;
    credited bigint;
    state text;
BEGIN
    SELECT total_cents INTO STRICT total FROM invoices WHERE id = NEW.invoice_id;
    SELECT * INTO last FROM invoice_events WHERE invoice_id = NEW.invoice_id ORDER BY seq DESC LIMIT 1;
    due := coalesce(last.amount_due_cents, 0);
    paid := coalesce(last.paid_cents, 0);
    credited := coalesce(last.credited_cents, 0);
    state := coalesce(last.status, 'finalized');
    IF NEW.seq <> coalesce(last.seq, 0) + 1 OR (NEW.kind = 'finalized') <> (last.seq IS NULL) THEN
        RAISE EXCEPTION 'event % of invoice % is not its next one', NEW.seq, NEW.invoice_id
            USING ERRCODE = 'check_violation';
    END IF;
    CASE NEW.kind
    WHEN 'finalized' THEN
        due := total;
    WHEN 'open' THEN
        state := CASE WHEN due = 0 THEN 'paid' ELSE 'open' END;
    WHEN 'payment' THEN
        due := due - NEW.amount_cents;
        paid := paid + NEW.amount_cents;
    WHEN 'credit_note' THEN
        due := due - NEW.amount_cents;
        credited := credited + (SELECT total_cents FROM credit_notes WHERE id = NEW.credit_note_id);
    WHEN 'void' THEN
        due := 0;
        state := 'void';
    WHEN 'uncollectible' THEN
        state := 'uncollectible';
    ELSE
    END CASE;
    IF due = 0 AND state IN ('open', 'uncollectible') THEN
        state := 'paid';
    END IF;
    IF NEW.amount_due_cents <> due OR NEW.paid_cents <> paid OR NEW.credited_cents <> credited OR NEW.status <> state THEN
        RAISE EXCEPTION 'event % of invoice % does not follow from the one before', NEW.seq, NEW.invoice_id
            USING ERRCODE = 'check_violation';
    END IF;
    IF (total >= 0 AND (due < 0 OR NEW.amount_cents < 0)) OR credited > greatest(total, 0)
        OR (NEW.kind = 'open' AND last.status <> 'finalized')
        OR (NEW.kind IN ('void', 'uncollectible') AND last.status <> 'open')
        OR (NEW.kind = 'void' AND last.paid_cents <> 0)
        OR (NEW.kind = 'recovered' AND last.status <> 'uncollectible')
        OR (NEW.kind = 'credit_note' AND last.status IN ('finalized', 'void'))
        OR (NEW.kind = 'payment' AND last.status IN ('void', 'paid') AND NEW.amount_cents <> 0)
    THEN
        RAISE EXCEPTION '% of invoice % refused: it is %, % cents are due', NEW.kind, NEW.invoice_id, last.status,
            last.amount_due_cents USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER invoice_events_follow BEFORE INSERT ON invoice_events
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_event_follows();
"""

DROP_GUARDS = """
DROP TRIGGER invoices_have_numbers ON invoices;
DROP FUNCTION billing_has_number() CASCADE;
DROP FUNCTION billing_refuse_part_of_final() CASCADE;
DROP FUNCTION billing_document_follows() CASCADE;
DROP FUNCTION billing_credit_note_is_whole() CASCADE;
DROP FUNCTION billing_invoice_event_follows() CASCADE;
"""


# The scopes of a key that may do everything: it may also change the tenant's billing profile.
EVERY_SCOPE = (
    "ARRAY['inference', 'adapters:read', 'adapters:write', 'usage:read', 'billing:read', 'keys:write',"
    " 'notifications:write']"
)


def upgrade() -> None:
    op.execute(
        "UPDATE api_keys SET scopes = ARRAY(SELECT unnest(scopes || 'billing:write'::text) ORDER BY 1)"
        f" WHERE scopes @> {EVERY_SCOPE} AND NOT 'billing:write' = ANY (scopes)"
    )
    op.execute("SET LOCAL statement_timeout = 0; SET LOCAL timezone = 'UTC'")
    _create_documents()
    _create_corrections()
    _create_tax_tables()
    _extend_invoices()
    op.execute(CHAIN)
    op.execute("DROP TABLE invoices_before")
    op.execute(INVOICE_IS_WHOLE)
    op.execute(GUARDS)
    for table in _INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )
    for table in _PARTS:
        op.execute(
            f"CREATE TRIGGER {table}_not_final AFTER INSERT ON {table} REFERENCING NEW TABLE AS added"
            " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_part_of_final()"
        )


def _extend_invoices() -> None:
    op.execute("CREATE TEMPORARY TABLE invoices_before ON COMMIT DROP AS SELECT id, number, tenant_id FROM invoices")
    op.execute("ALTER TABLE invoices DISABLE TRIGGER invoices_written_once")
    op.add_column("invoices", sa.Column("kind", sa.String(), nullable=False, server_default="period"))
    for name in ("carried_nanos", "net_cents", "tax_cents"):
        op.add_column("invoices", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE invoices SET net_cents = total_cents")
    op.execute("ALTER TABLE invoices ENABLE TRIGGER invoices_written_once")
    for name in ("kind", "carried_nanos", "net_cents", "tax_cents"):
        op.alter_column("invoices", name, server_default=None)
    op.add_column("invoices", sa.Column("seller", JSONB(), nullable=True))
    op.add_column("invoices", sa.Column("buyer", JSONB(), nullable=True))
    op.drop_column("invoices", "number")
    op.drop_column("invoices", "status")
    op.execute("ALTER TABLE invoices DROP CONSTRAINT ck_invoices_ck_invoices_totals_not_negative")
    for name, rule in (
        ("kind_known", "kind IN ('period', 'threshold', 'final', 'supplementary')"),
        ("total_is_net_and_tax", "total_cents = net_cents + tax_cents"),
        ("less_than_a_cent_carried", "carried_nanos BETWEEN -9999999 AND 9999999"),
    ):
        op.create_check_constraint(op.f(f"ck_invoices_{name}"), "invoices", rule)


def _create_documents() -> None:
    op.create_table(
        "documents",
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("content_format", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("content_sha256", "previous_sha256", "sha256")),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name=op.f("ck_documents_kind_known")),
        sa.PrimaryKeyConstraint("position", name="pk_documents"),
        sa.UniqueConstraint("kind", "number", name="uq_documents_kind_number"),
        sa.UniqueConstraint("document_id", name="uq_documents_document_id"),
    )
    op.create_index("ix_documents_tenant_id", "documents", ["tenant_id"])
    op.create_table(
        "invoice_credits",
        sa.Column("invoice_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("lot_id", sa.String(), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_nanos > 0 AND amount_cents >= 0", name=op.f("ck_invoice_credits_uses_something")),
        _deferred("invoice_credits", "invoice_id", "invoices"),
        sa.PrimaryKeyConstraint("invoice_id", "position", name="pk_invoice_credits"),
    )
    op.create_table(
        "invoice_tax_lines",
        sa.Column("invoice_id", sa.String(), nullable=False),
        *_tax_columns(),
        sa.CheckConstraint("rate_ppm BETWEEN 0 AND 1000000", name=op.f("ck_invoice_tax_lines_rate_possible")),
        _deferred("invoice_tax_lines", "invoice_id", "invoices"),
        sa.PrimaryKeyConstraint("invoice_id", "position", name="pk_invoice_tax_lines"),
    )
    op.create_table(
        "carried_periods",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("lines", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "amount_nanos BETWEEN -9999999 AND 9999999", name=op.f("ck_carried_periods_less_than_a_cent")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "period_end", name="pk_carried_periods"),
    )
    op.create_table(
        "invoice_holds",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_invoice_holds"),
    )


def _create_corrections() -> None:
    op.create_table(
        "credit_notes",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "invoice_id", "tenant_id")),
        sa.Column("line_id", sa.String(), nullable=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("net_cents", "tax_cents", "total_cents")),
        sa.Column("destination", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("due_cents", "balance_cents", "refund_cents")),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("reference", sa.String(), nullable=True),
        sa.Column("transfer_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "total_cents = net_cents + tax_cents AND net_cents > 0", name=op.f("ck_credit_notes_total_is_net_and_tax")
        ),
        sa.CheckConstraint(
            "total_cents = due_cents + balance_cents + refund_cents"
            " AND due_cents >= 0 AND balance_cents >= 0 AND refund_cents >= 0",
            name=op.f("ck_credit_notes_total_goes_somewhere"),
        ),
        sa.CheckConstraint(
            "destination IN ('amount_due', 'balance', 'refund')", name=op.f("ck_credit_notes_destination_known")
        ),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_credit_notes_invoice_id_invoices"),
        sa.ForeignKeyConstraint(["line_id"], ["invoice_lines.id"], name="fk_credit_notes_line_id_invoice_lines"),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_credit_notes_transfer_id_transfers"),
        sa.PrimaryKeyConstraint("id", name="pk_credit_notes"),
        sa.UniqueConstraint("tenant_id", "reference", name="uq_credit_notes_tenant_id_reference"),
        sa.UniqueConstraint("transfer_id", name="uq_credit_notes_transfer_id"),
    )
    op.create_index("ix_credit_notes_invoice_id", "credit_notes", ["invoice_id"])
    op.create_table(
        "credit_note_tax_lines",
        sa.Column("credit_note_id", sa.String(), nullable=False),
        *_tax_columns(),
        _deferred("credit_note_tax_lines", "credit_note_id", "credit_notes"),
        sa.PrimaryKeyConstraint("credit_note_id", "position", name="pk_credit_note_tax_lines"),
    )
    op.create_table(
        "invoice_events",
        sa.Column("invoice_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("surplus_cents", sa.BigInteger(), nullable=False),
        *(
            sa.Column(name, sa.String(), nullable=True)
            for name in ("source", "reference", "credit_note_id", "transfer_id", "reason", "actor")
        ),
        sa.Column("status", sa.String(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("amount_due_cents", "paid_cents", "credited_cents")
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "kind IN ('finalized', 'open', 'payment', 'credit_note', 'void', 'uncollectible', 'recovered')",
            name=op.f("ck_invoice_events_kind_known"),
        ),
        sa.CheckConstraint(
            "status IN ('finalized', 'open', 'paid', 'void', 'uncollectible')",
            name=op.f("ck_invoice_events_status_known"),
        ),
        sa.CheckConstraint(
            "source IN ('stripe', 'manual', 'credits', 'balance')", name=op.f("ck_invoice_events_source_known")
        ),
        sa.CheckConstraint(
            "(kind = 'payment') = (source IS NOT NULL)", name=op.f("ck_invoice_events_payment_has_source")
        ),
        sa.CheckConstraint(
            "(kind = 'credit_note') = (credit_note_id IS NOT NULL)", name=op.f("ck_invoice_events_note_is_named")
        ),
        sa.CheckConstraint("surplus_cents >= 0", name=op.f("ck_invoice_events_surplus_not_negative")),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_invoice_events_invoice_id_invoices"),
        sa.ForeignKeyConstraint(
            ["credit_note_id"], ["credit_notes.id"], name="fk_invoice_events_credit_note_id_credit_notes"
        ),
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], name="fk_invoice_events_transfer_id_transfers"),
        sa.PrimaryKeyConstraint("invoice_id", "seq", name="pk_invoice_events"),
        sa.UniqueConstraint("source", "reference", name="uq_invoice_events_source_reference"),
        sa.UniqueConstraint("credit_note_id", name="uq_invoice_events_credit_note_id"),
        sa.UniqueConstraint("transfer_id", name="uq_invoice_events_transfer_id"),
    )
    op.create_index("ix_invoice_events_status", "invoice_events", ["status", "invoice_id"])


def _create_tax_tables() -> None:
    op.create_table(
        "sellers",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("details", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_sellers"),
    )
    op.create_table(
        "billing_profiles",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("details", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "version", name="pk_billing_profiles"),
    )
    op.create_table(
        "tax_rates",
        sa.Column("country", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rate_ppm", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("rate_ppm BETWEEN 0 AND 1000000", name=op.f("ck_tax_rates_rate_possible")),
        sa.PrimaryKeyConstraint("country", "name", "effective_from", name="pk_tax_rates"),
    )


def _tax_columns() -> list[sa.Column]:
    return [
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("rate_ppm", sa.Integer(), nullable=False),
        sa.Column("base_cents", sa.BigInteger(), nullable=False),
        sa.Column("tax_cents", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.String(), nullable=True),
    ]


def _deferred(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=f"fk_{table}_{column}_{target}", deferrable=True, initially="DEFERRED"
    )


def downgrade() -> None:
    """Refused once an invoice has tax, a payment or a note: the schema of before cannot hold them."""
    newer = sa.text("SELECT EXISTS (SELECT FROM invoice_events WHERE seq > 2) OR EXISTS (SELECT FROM invoices WHERE tax_cents <> 0)")
    if op.get_bind().execute(newer).scalar_one():
        raise RuntimeError("invoices have taxes, payments or notes; restore a backup instead")
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'billing:write')")
    op.execute(DROP_GUARDS)
    op.execute(INVOICE_WAS_WHOLE)
    op.execute("ALTER TABLE invoices DISABLE TRIGGER invoices_written_once")
    op.add_column("invoices", sa.Column("number", sa.BigInteger(), nullable=True))
    op.add_column("invoices", sa.Column("status", sa.String(), nullable=False, server_default="finalised"))
    op.execute("UPDATE invoices SET number = d.number FROM documents d WHERE d.document_id = invoices.id")
    op.execute("ALTER TABLE invoices ENABLE TRIGGER invoices_written_once")
    op.alter_column("invoices", "number", nullable=False)
    op.alter_column("invoices", "status", server_default=None)
    op.create_unique_constraint("uq_invoices_number", "invoices", ["number"])
    for name, rule in (
        ("totals_not_negative", "total_cents >= 0 AND amount_nanos >= 0"),
        ("number_positive", "number > 0"),
        ("status_known", "status = 'finalised'"),
    ):
        op.create_check_constraint(op.f(f"ck_invoices_ck_invoices_{name}"), "invoices", rule)
    for name in ("kind", "carried_nanos", "net_cents", "tax_cents", "seller", "buyer"):
        op.drop_column("invoices", name)
    for table in (
        "invoice_events", "credit_note_tax_lines", "credit_notes", "invoice_credits", "invoice_tax_lines",
        "carried_periods", "invoice_holds", "documents", "sellers", "billing_profiles", "tax_rates",
    ):  # fmt: skip
        op.drop_table(table)
