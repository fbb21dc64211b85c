"""A void returns the credit and the balance that the invoice had used: entries of the kind ``return``.

Revision: 2026_11_25_1040, after 2026_11_25_1030.
"""

from collections.abc import Sequence

from alembic import op

revision = "2026_11_25_1040"
down_revision = "2026_11_25_1030"
branch_labels = None
depends_on = None

ENTRIES = """
ALTER TABLE credit_entries
    DROP CONSTRAINT ck_credit_entries_kind_known,
    DROP CONSTRAINT ck_credit_entries_only_grants_and_lapses_add,
    DROP CONSTRAINT ck_credit_entries_invoice_fits_kind,
    ADD CONSTRAINT ck_credit_entries_kind_known
        CHECK (kind IN ('grant', 'burn', 'return', 'lapse', 'refund', 'void')),
    ADD CONSTRAINT ck_credit_entries_only_some_kinds_add
        CHECK (kind = 'lapse' OR (amount_nanos > 0) = (kind IN ('grant', 'return'))),
    ADD CONSTRAINT ck_credit_entries_invoice_fits_kind
        CHECK ((invoice_id IS NULL OR kind IN ('burn', 'return')) AND (invoice_id IS NOT NULL OR kind <> 'return'));
CREATE UNIQUE INDEX uq_credit_entries_returned_once ON credit_entries (invoice_id, lot_id) WHERE kind = 'return';

CREATE FUNCTION billing_returned_credit_was_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM credit_entries e WHERE e.lot_id = NEW.lot_id AND e.invoice_id = NEW.invoice_id AND e.kind = 'burn'
            AND e.amount_nanos = - NEW.amount_nanos
    ) THEN
        RAISE EXCEPTION 'invoice % did not use % of credit lot %', NEW.invoice_id, NEW.amount_nanos, NEW.lot_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER credit_entries_return_what_was_used BEFORE INSERT ON credit_entries
    FOR EACH ROW WHEN (NEW.kind = 'return') EXECUTE FUNCTION billing_returned_credit_was_used();
"""

# What a void changes in billing_invoice_event_follows: nothing of the invoice is paid any longer, and only money that
# was paid refuses it.
VOIDS = (
    ("due := 0;", "due := 0;\n        paid := 0;"),
    (
        "(NEW.kind = 'void' AND last.paid_cents <> 0)",
        "(NEW.kind = 'void' AND EXISTS (SELECT FROM invoice_events e WHERE e.invoice_id = NEW.invoice_id"
        " AND e.source IN ('stripe', 'manual') AND e.amount_cents <> 0))",
    ),
)


def upgrade() -> None:
    op.execute(ENTRIES)
    _replace(VOIDS)


def downgrade() -> None:
    """Raises where credit was returned: its entries cannot be undone."""
    _replace([(after, before) for before, after in VOIDS])
    op.execute("""
DROP TRIGGER credit_entries_return_what_was_used ON credit_entries;
DROP FUNCTION billing_returned_credit_was_used();
DROP INDEX uq_credit_entries_returned_once;
ALTER TABLE credit_entries
    DROP CONSTRAINT ck_credit_entries_kind_known,
    DROP CONSTRAINT ck_credit_entries_only_some_kinds_add,
    DROP CONSTRAINT ck_credit_entries_invoice_fits_kind,
    ADD CONSTRAINT ck_credit_entries_kind_known CHECK (kind IN ('grant', 'burn', 'lapse', 'refund', 'void')),
    ADD CONSTRAINT ck_credit_entries_only_grants_and_lapses_add
        CHECK (kind = 'lapse' OR (amount_nanos > 0) = (kind = 'grant')),
    ADD CONSTRAINT ck_credit_entries_invoice_fits_kind CHECK (invoice_id IS NULL OR kind = 'burn');
""")


def _replace(changes: Sequence[tuple[str, str]]) -> None:
    """Replace these parts of ``billing_invoice_event_follows``."""
    definition = (
        op.get_bind()
        .exec_driver_sql("SELECT pg_get_functiondef('billing_invoice_event_follows()'::regprocedure)")
        .scalar_one()
    )
    for before, after in changes:
        assert definition.count(before) == 1, before
        definition = definition.replace(before, after)
    op.get_bind().exec_driver_sql(definition.replace("%", "%%"))
