"""Lets the owner of the audit trail move old rows into an archive. No other role can delete a row, and no row can change.

Revision: 2026_11_23_0930, after 2026_11_23_0920.
"""

from alembic import op

revision = "2026_11_23_0930"
down_revision = "2026_11_23_0920"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION control_plane_audit_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            owner oid := (SELECT relowner FROM pg_class WHERE oid = TG_RELID);
        BEGIN
            IF TG_OP = 'DELETE' AND current_setting('tenora.archiving_audit', true) = 'on'
                AND pg_has_role(current_user, owner, 'MEMBER') THEN
                RETURN NULL;
            END IF;
            RAISE EXCEPTION '% rows are only ever added', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    op.execute("DROP TRIGGER audit_events_are_final ON audit_events")
    op.execute(
        "CREATE TRIGGER audit_events_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events "
        "FOR EACH STATEMENT EXECUTE FUNCTION control_plane_audit_is_final()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER audit_events_are_final ON audit_events")
    op.execute(
        "CREATE TRIGGER audit_events_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events "
        "FOR EACH STATEMENT EXECUTE FUNCTION control_plane_rows_are_final()"
    )
    op.execute("DROP FUNCTION control_plane_audit_is_final()")
