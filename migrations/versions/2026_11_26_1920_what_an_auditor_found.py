"""Lets the lines of a void invoice wait for the tenant's next one, gives discounts a scope and invoices a due date,
remembers what was spent when a limit was raised, and drops holds, which nothing made.

Revision: 2026_11_26_1920, after 2026_11_26_1910.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "2026_11_26_1920"
down_revision = "2026_11_26_1910"
branch_labels = None
depends_on = None

# A row waits until an invoice ends after ``billed_until``. Rows of void invoices name theirs.
CARRIED = """
ALTER TABLE carried_periods DISABLE TRIGGER carried_periods_written_once;
ALTER TABLE carried_periods
    ADD COLUMN invoice_id varchar UNIQUE REFERENCES invoices (id),
    ADD COLUMN billed_until timestamptz,
    DROP CONSTRAINT ck_carried_periods_less_than_a_cent;
UPDATE carried_periods SET billed_until = period_end;
ALTER TABLE carried_periods
    ALTER COLUMN billed_until SET NOT NULL,
    ADD CONSTRAINT ck_carried_periods_less_than_a_cent
        CHECK (invoice_id IS NOT NULL OR amount_nanos BETWEEN -9999999 AND 9999999 AND billed_until = period_end);
ALTER TABLE carried_periods RENAME CONSTRAINT carried_periods_invoice_id_key TO uq_carried_periods_invoice_id;
ALTER TABLE carried_periods
    RENAME CONSTRAINT carried_periods_invoice_id_fkey TO fk_carried_periods_invoice_id_invoices;
ALTER TABLE carried_periods ENABLE TRIGGER carried_periods_written_once;

DROP TRIGGER carried_periods_close ON carried_periods;
CREATE CONSTRAINT TRIGGER carried_periods_close AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.invoice_id IS NULL) EXECUTE FUNCTION billing_closes_period();

-- The lines of a void invoice wait once, for the next invoice after the void, with what the void made unbilled.
CREATE FUNCTION billing_carries_void_invoice() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM invoices i
        JOIN invoice_events e ON e.invoice_id = i.id AND e.kind = 'void' AND NOT e.write_off
        JOIN subscriptions s ON s.tenant_id = i.tenant_id AND s.billed_until = NEW.billed_until
        WHERE i.id = NEW.invoice_id AND (i.tenant_id, i.period_start, i.period_end)
            = (NEW.tenant_id, NEW.period_start, NEW.period_end)
            AND billing_leg(e.transfer_id, 'usage_unbilled', i.tenant_id)
                + (SELECT coalesce(sum(amount_nanos), 0) FROM invoice_credits WHERE invoice_id = i.id)
                = NEW.amount_nanos
    ) THEN
        RAISE EXCEPTION 'INSERT into carried_periods refused: % is not what a void of invoice % left', NEW.amount_nanos,
            NEW.invoice_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER carried_periods_are_void AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.invoice_id IS NOT NULL) EXECUTE FUNCTION billing_carries_void_invoice();
"""

UNCARRIED = """
DROP TRIGGER carried_periods_are_void ON carried_periods;
DROP FUNCTION billing_carries_void_invoice();
DROP TRIGGER carried_periods_close ON carried_periods;
CREATE CONSTRAINT TRIGGER carried_periods_close AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
ALTER TABLE carried_periods
    DROP CONSTRAINT ck_carried_periods_less_than_a_cent,
    DROP COLUMN invoice_id,
    DROP COLUMN billed_until,
    ADD CONSTRAINT ck_carried_periods_less_than_a_cent CHECK (amount_nanos BETWEEN -9999999 AND 9999999);
"""

# A void that writes nothing off leaves its lines to the next invoice.
VOIDS = (
    (
        "AND billing_leg(NEW.transfer_id, 'customer_balance', tenant) = - by_balance;",
        "AND billing_leg(NEW.transfer_id, 'customer_balance', tenant) = - by_balance\n"
        "            AND NEW.write_off <> EXISTS (SELECT FROM carried_periods WHERE invoice_id = NEW.invoice_id);",
    ),
)


def upgrade() -> None:
    op.drop_table("invoice_holds")
    op.add_column(
        "invoice_events", sa.Column("write_off", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )
    op.execute("ALTER TABLE invoice_events DISABLE TRIGGER invoice_events_written_once")
    op.execute("UPDATE invoice_events SET write_off = true WHERE kind = 'void'")
    op.execute("ALTER TABLE invoice_events ENABLE TRIGGER invoice_events_written_once")
    op.create_check_constraint(
        op.f("ck_invoice_events_only_voids_write_off"), "invoice_events", "NOT write_off OR kind = 'void'"
    )
    op.execute(CARRIED)
    _replace(VOIDS)
    op.add_column("discounts", sa.Column("scope", sa.String(), nullable=False, server_default="all"))
    op.create_check_constraint(op.f("ck_discounts_scope_known"), "discounts", "scope IN ('usage', 'fees', 'all')")
    op.add_column(
        "spend_limits", sa.Column("raised_at_nanos", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )
    op.add_column("invoices", sa.Column("due_on", sa.Date(), nullable=True))


def downgrade() -> None:
    """Refused where lines of a void invoice wait, or a discount is not for all charges: they would be lost."""
    newer = sa.text(
        "SELECT EXISTS (SELECT FROM carried_periods WHERE invoice_id IS NOT NULL)"
        " OR EXISTS (SELECT FROM discounts WHERE scope <> 'all')"
        " OR EXISTS (SELECT FROM invoices WHERE due_on IS NOT NULL)"
    )
    if op.get_bind().execute(newer).scalar_one():
        raise RuntimeError("void invoices, discounts or due dates need the newer schema; restore a backup instead")
    op.drop_column("invoices", "due_on")
    op.drop_column("spend_limits", "raised_at_nanos")
    op.drop_column("discounts", "scope")
    _replace([(after, before) for before, after in VOIDS])
    op.execute(UNCARRIED)
    op.drop_column("invoice_events", "write_off")
    op.create_table(
        "invoice_holds",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_invoice_holds"),
    )


def _replace(changes: Sequence[tuple[str, str]]) -> None:
    """Replace these parts of ``billing_invoice_event_is_posted``."""
    definition = (
        op.get_bind()
        .exec_driver_sql("SELECT pg_get_functiondef('billing_invoice_event_is_posted()'::regprocedure)")
        .scalar_one()
    )
    for before, after in changes:
        assert definition.count(before) == 1, before
        definition = definition.replace(before, after)
    op.get_bind().exec_driver_sql(definition.replace("%", "%%"))
