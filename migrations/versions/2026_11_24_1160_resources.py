"""Adds what is metered by the hour: adapter storage, pinned slots and cold loads.

``revisions`` gets the size of what is stored; revisions of before have none and are not metered until the worker has
read it from the store. Pins get a history, which begins with the first look of the worker. Billing reads both through
views.

Revision: 2026_11_24_1160, after 2026_11_24_1140.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_24_1160"
down_revision = "2026_11_24_1140"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
_KINDS = "kind IN ('adapter_storage', 'pinned_slots', 'cold_loads')"
_WHOLE = "hour = date_trunc('hour', hour, 'UTC')"
_WRITTEN_ONCE = ("resource_hours", "metered_hours", "replica_revisions", "pin_events")

VIEWS = """
CREATE VIEW stored_revisions AS
SELECT r.tenant_id, r.adapter_id, a.base_model, coalesce(r.rank_class, 0) AS rank_class, r.id AS revision_id, r.digest,
    r.stored_bytes, r.decided_at AS begins, a.deleted_at AS ends
FROM revisions r JOIN adapters a ON a.id = r.adapter_id
WHERE r.status = 'ready' AND r.stored_bytes IS NOT NULL AND r.decided_at IS NOT NULL;

CREATE VIEW pinned_slots AS
SELECT tenant_id, adapter_id, base_model, rank_class, engine_name, at AS begins, ends
FROM (SELECT *, lead(at) OVER (PARTITION BY engine_name ORDER BY at, id) AS ends FROM pin_events) events
WHERE pinned;
"""

GUARDS = """
CREATE FUNCTION billing_refuse_metered_hour() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM metered_hours WHERE kind = NEW.kind AND hour = NEW.hour) THEN
        RAISE EXCEPTION 'INSERT into resource_hours refused: % of % is metered', NEW.kind, NEW.hour
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER resource_hours_metered_once BEFORE INSERT ON resource_hours
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_metered_hour();
"""


def upgrade() -> None:
    op.add_column("revisions", sa.Column("stored_bytes", sa.BigInteger(), nullable=True))
    op.create_table(
        "pin_events",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("adapter_id", sa.Text(), nullable=False),
        sa.Column("engine_name", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("rank_class", sa.Integer(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pin_events"),
    )
    op.create_index("ix_pin_events_adapter_id", "pin_events", ["adapter_id"])
    _billing_tables()
    op.execute(VIEWS)
    op.execute(GUARDS)
    for table in _WRITTEN_ONCE:
        op.execute(
            f"CREATE TRIGGER {table}_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
        )


def _billing_tables() -> None:
    op.create_table(
        "resource_hours",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("adapter_id", sa.String(), nullable=False),
        sa.Column("rank_class", sa.Integer(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("counted_at", INSTANT, nullable=False),
        sa.CheckConstraint(_KINDS, name=op.f("ck_resource_hours_kind_known")),
        sa.CheckConstraint("units > 0", name=op.f("ck_resource_hours_counts_something")),
        sa.CheckConstraint(_WHOLE, name=op.f("ck_resource_hours_hour_is_whole")),
        sa.CheckConstraint("counted_at >= hour", name=op.f("ck_resource_hours_counted_later")),
        sa.PrimaryKeyConstraint("tenant_id", "hour", "kind", "adapter_id", "rank_class", name="pk_resource_hours"),
    )
    op.create_index("ix_resource_hours_tenant_id_counted_at", "resource_hours", ["tenant_id", "counted_at"])
    op.create_index("ix_resource_hours_kind_hour", "resource_hours", ["kind", "hour"])
    op.create_table(
        "metered_hours",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint(_KINDS, name=op.f("ck_metered_hours_kind_known")),
        sa.CheckConstraint(_WHOLE, name=op.f("ck_metered_hours_hour_is_whole")),
        sa.CheckConstraint("created_at >= hour + interval '1 hour'", name=op.f("ck_metered_hours_hour_has_ended")),
        sa.PrimaryKeyConstraint("kind", "hour", name="pk_metered_hours"),
    )
    op.create_table(
        "replica_revisions",
        sa.Column("replica_id", sa.String(), nullable=False),
        sa.Column("revision_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("adapter_tier", sa.String(), nullable=True),
        sa.Column("hour", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("replica_id", "revision_id", name="pk_replica_revisions"),
    )


def downgrade() -> None:
    op.execute("DROP VIEW pinned_slots; DROP VIEW stored_revisions")
    for table in _WRITTEN_ONCE:
        op.drop_table(table)
    op.execute("DROP FUNCTION billing_refuse_metered_hour()")
    op.drop_column("revisions", "stored_bytes")
