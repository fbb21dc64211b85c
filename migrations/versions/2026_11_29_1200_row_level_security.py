"""What row-level security needs: triggers and views that ask for the right rows. The policies themselves are applied by
``control_plane/row_policies.py`` after each migration.

Revision: 2026_11_29_1200, after 2026_11_29_1100.
"""

from alembic import op

revision = "2026_11_29_1200"
down_revision = "2026_11_29_1100"
branch_labels = None
depends_on = None

# A trigger checks what is written against what is there, so it must see every row, whatever its transaction may see.
# The two that are left out look at no rows, and ask who deletes. No process may put a trigger on a table of its own.
TRIGGERS = """
DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN SELECT oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prorettype = 'trigger'::regtype
        AND proname NOT IN ('control_plane_audit_is_final', 'billing_cost_windows_are_final')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY {}', each);
        EXECUTE format('{} EXECUTE ON FUNCTION %s {} PUBLIC', each);
    END LOOP;
END $$;
"""
CHANGED_BY_OWNER = ("billing_count_adjustment()", "billing_count_amendment()")  # they were so before

VIEWS = """
ALTER VIEW adapter_names SET (security_invoker = true);
ALTER VIEW usage_now SET (security_invoker = true);

CREATE VIEW batch_queue AS
SELECT id, status, total, total - completed - failed AS waiting, in_progress_at, finalizing_at, ended_at FROM batches;
"""


def upgrade() -> None:
    run(TRIGGERS.format("DEFINER", "REVOKE", "FROM"))
    run(VIEWS)


def downgrade() -> None:
    run("DROP VIEW batch_queue; ALTER VIEW usage_now RESET (security_invoker);")
    run("ALTER VIEW adapter_names RESET (security_invoker)")
    run(TRIGGERS.format("INVOKER", "GRANT", "TO"))
    for function in CHANGED_BY_OWNER:
        run(f"ALTER FUNCTION {function} SECURITY DEFINER")


def run(statements: str) -> None:
    """Execute statements as they are: ``:`` and ``%`` stand for themselves."""
    op.get_bind().connection.driver_connection.execute(statements)
