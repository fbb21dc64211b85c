"""Every table, view, function and trigger of the first release, from the files of ``migrations/schema``.

Revision: 2026_11_26_2100, the first. Those files are part of this migration: a later change is a migration of its own.
"""

from pathlib import Path

from alembic import op

revision = "2026_11_26_2100"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = Path(__file__).parents[1] / "schema"
FILES = (
    "functions", "control_plane", "billing/ledger", "billing/tax", "billing/payments", "billing/costs",
    "billing/subscriptions", "billing/prices", "billing/reconciliation", "billing/resources", "billing/notifications",
    "billing/limits", "billing/credits", "billing/charges", "billing/invoices", "billing/usage",
)  # fmt: skip
"""In the order in which tables refer to each other. A function may name tables of a later file."""

PARTITIONS = """
CREATE SCHEMA partitions;  -- no process may use it: rows are read and written through the parent
CREATE TABLE partitions.usage_records_default PARTITION OF usage_records DEFAULT;
SELECT billing_add_usage_partitions(now(), 3);
"""

EVERYTHING = """
DROP SCHEMA partitions CASCADE;
DO $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v' LOOP
        EXECUTE format('DROP VIEW %s', each.name);
    END LOOP;
    FOR each IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relkind IN ('r', 'p') AND relname <> 'alembic_version' LOOP
        EXECUTE format('DROP TABLE %s CASCADE', each.name);
    END LOOP;
    FOR each IN SELECT oid::regprocedure AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace LOOP
        EXECUTE format('DROP FUNCTION %s', each.name);
    END LOOP;
END $$;
"""


def upgrade() -> None:
    run("SET LOCAL check_function_bodies = off")
    for name in FILES:
        run((SCHEMA / f"{name}.sql").read_text())
    run(PARTITIONS)


def downgrade() -> None:
    run(EVERYTHING)


def run(statements: str) -> None:
    """Execute statements as they are: ``:`` and ``%`` stand for themselves."""
    op.get_bind().connection.driver_connection.execute(statements)
