"""Lets a scheduled price version be withdrawn before it begins: a row of its own says so, and the version stays.

Revision: 2026_11_26_1600, after 2026_11_26_1540.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_26_1600"
down_revision = "2026_11_26_1540"
branch_labels = None
depends_on = None

TRIGGERS = """
CREATE FUNCTION billing_refuse_begun_version() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM price_versions WHERE id = NEW.price_version_id AND effective_from <= clock_timestamp()
    ) THEN
        RAISE EXCEPTION 'INSERT into % refused: the version % has begun', TG_TABLE_NAME, NEW.price_version_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER withdrawn_price_versions_not_begun BEFORE INSERT ON withdrawn_price_versions
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_begun_version();
CREATE TRIGGER withdrawn_price_versions_written_once
    BEFORE UPDATE OR DELETE OR TRUNCATE ON withdrawn_price_versions
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""


def upgrade() -> None:
    op.create_table(
        "withdrawn_price_versions",
        sa.Column("price_version_id", sa.String(), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["price_version_id"],
            ["price_versions.id"],
            name="fk_withdrawn_price_versions_price_version_id_price_versions",
        ),
        sa.PrimaryKeyConstraint("price_version_id", name="pk_withdrawn_price_versions"),
    )
    op.execute(TRIGGERS)


def downgrade() -> None:
    op.drop_table("withdrawn_price_versions")
    op.execute("DROP FUNCTION billing_refuse_begun_version()")
