"""Lets billing delete old windows of replicas' time, which no index had found by their time alone.

No role can delete a window but through ``billing_delete_cost_windows``, which keeps the last seven days whatever it is
asked for.

Revision: 2026_11_25_1020, after 2026_11_25_1010.
"""

from alembic import op

revision = "2026_11_25_1020"
down_revision = "2026_11_25_1010"
branch_labels = None
depends_on = None

FUNCTIONS = """
CREATE FUNCTION billing_cost_windows_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owner oid := (SELECT relowner FROM pg_class WHERE oid = TG_RELID);
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('tenora.deleting_cost_windows', true) = 'on'
        AND pg_has_role(current_user, owner, 'MEMBER') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% rows are written once; billing_delete_cost_windows deletes old ones', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

-- The oldest windows of the hours that begin more than so many days ago, and how many of them were never shared out.
CREATE FUNCTION billing_delete_cost_windows(days int, most int, OUT windows bigint, OUT unshared bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    before_ms bigint := floor(extract(epoch FROM clock_timestamp() - make_interval(days => greatest(days, 7))) / 3600)
        * 3600000;
BEGIN
    PERFORM set_config('tenora.deleting_cost_windows', 'on', true);
    WITH old AS (
        SELECT replica_id, boot_id, sequence FROM replica_cost_windows
        WHERE start_ms < before_ms ORDER BY start_ms LIMIT most
    ), gone AS (
        DELETE FROM replica_cost_windows w USING old o
        WHERE (w.replica_id, w.boot_id, w.sequence) = (o.replica_id, o.boot_id, o.sequence)
        RETURNING w.replica_id, w.start_ms
    )
    SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
        SELECT FROM cost_hours h WHERE h.replica_id = g.replica_id AND h.hour_ms = g.start_ms / 3600000 * 3600000
    )) INTO windows, unshared FROM gone g;
    PERFORM set_config('tenora.deleting_cost_windows', '', true);
END $$;
REVOKE ALL ON FUNCTION billing_delete_cost_windows(int, int) FROM PUBLIC;
"""


def _trigger(function: str) -> str:
    return (
        "CREATE TRIGGER replica_cost_windows_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON replica_cost_windows"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )


def upgrade() -> None:
    op.create_index("ix_replica_cost_windows_start_ms", "replica_cost_windows", ["start_ms"])
    op.execute(FUNCTIONS)
    op.execute("DROP TRIGGER replica_cost_windows_are_final ON replica_cost_windows")
    op.execute(_trigger("billing_cost_windows_are_final"))


def downgrade() -> None:
    op.execute("DROP TRIGGER replica_cost_windows_are_final ON replica_cost_windows")
    op.execute(_trigger("billing_refuse_change"))
    op.execute("DROP FUNCTION billing_delete_cost_windows(int, int)")
    op.execute("DROP FUNCTION billing_cost_windows_are_final()")
    op.drop_index("ix_replica_cost_windows_start_ms", "replica_cost_windows")
