"""Adds a function that locks the usage records, for a role that may only add to them.

Revision: 2026_11_23_0940, after 2026_11_23_0930.
"""

from alembic import op

revision = "2026_11_23_0940"
down_revision = "2026_11_23_0930"
branch_labels = None
depends_on = None


FUNCTION = """
CREATE FUNCTION billing_lock_usage_records() RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    LOCK TABLE usage_records IN SHARE ROW EXCLUSIVE MODE;
END $$
"""


def upgrade() -> None:
    op.execute(FUNCTION)
    op.execute("REVOKE ALL ON FUNCTION billing_lock_usage_records() FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION billing_lock_usage_records()")
