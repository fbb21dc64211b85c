"""Lets no session choose which tables triggers read.

A trigger's function looks tables up by the search path of the session that fires it, and a temporary table comes first
there. A session with an empty temporary table ``invoices`` could add lines to a final invoice. Later migrations fix the
path of each function that they make; a test reads it from the catalog.

Revision: 2026_11_25_1500, after 2026_11_25_1410.
"""

from alembic import op

revision = "2026_11_25_1500"
down_revision = "2026_11_25_1410"
branch_labels = None
depends_on = None

EARLIER_FUNCTIONS = """
DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN
        SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'public' AND NOT p.prosecdef AND p.proname ~ '^(billing|control_plane|payments|plan_drafts)_'
    LOOP
        EXECUTE format('ALTER FUNCTION %s {}', each);
    END LOOP;
END $$;
"""


def upgrade() -> None:
    op.execute(EARLIER_FUNCTIONS.format("SET search_path = pg_catalog, public, pg_temp"))


def downgrade() -> None:
    op.execute(EARLIER_FUNCTIONS.format("RESET search_path"))
