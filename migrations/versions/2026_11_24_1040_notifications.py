"""Adds notifications to tenants: endpoints (e-mail, webhooks), what was said, and the state of each delivery.

Revision: 2026_11_24_1040, after 2026_11_24_1030.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_24_1040"
down_revision = "2026_11_24_1030"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "notification_endpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("signing_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_secret_until", INSTANT, nullable=True),
        sa.Column("last_success_at", INSTANT, nullable=True),
        sa.Column("failing_since", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.CheckConstraint("kind IN ('email', 'webhook')", name="ck_notification_endpoints_kind_known"),
        sa.CheckConstraint(
            "status IN ('unconfirmed', 'active', 'disabled', 'deleted')", name="ck_notification_endpoints_status_known"
        ),
        sa.CheckConstraint(
            "status <> 'unconfirmed' OR kind = 'email'", name="ck_notification_endpoints_only_email_is_confirmed"
        ),
        sa.CheckConstraint(
            "(signing_secret IS NOT NULL) = (kind = 'webhook' AND status <> 'deleted')",
            name="ck_notification_endpoints_webhooks_have_a_secret",
        ),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_secret_until IS NULL)",
            name="ck_notification_endpoints_previous_secret_expires",
        ),
        sa.CheckConstraint(
            "(disabled_reason IS NOT NULL) = (status = 'disabled')", name="ck_notification_endpoints_reason_fits_status"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_notification_endpoints"),
    )
    op.create_index("ix_notification_endpoints_tenant_id", "notification_endpoints", ["tenant_id"])
    op.create_index(
        "uq_notification_endpoints_address",
        "notification_endpoints",
        ["tenant_id", "kind", "address"],
        unique=True,
        postgresql_where=sa.text("status <> 'deleted'"),
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("length(dedupe_key) BETWEEN 1 AND 300", name="ck_notifications_dedupe_key_bounded"),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sa.UniqueConstraint("tenant_id", "dedupe_key", name="uq_notifications_tenant_id_dedupe_key"),
    )
    op.create_index("ix_notifications_tenant_id_created_at", "notifications", ["tenant_id", "created_at"])
    op.execute(
        "CREATE TRIGGER notifications_written_once BEFORE UPDATE OR DELETE OR TRUNCATE ON notifications "
        "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
    )
    op.create_table(
        "notification_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("notification_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("attempts_before", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", INSTANT, nullable=False),
        sa.Column("next_attempt_at", INSTANT, nullable=False),
        sa.Column("leased_until", INSTANT, nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("delivered_at", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'failed')", name="ck_notification_deliveries_state_known"
        ),
        sa.CheckConstraint(
            "attempts_before BETWEEN 0 AND attempts", name="ck_notification_deliveries_attempts_possible"
        ),
        sa.CheckConstraint(
            "(delivered_at IS NOT NULL) = (state = 'delivered')", name="ck_notification_deliveries_delivered_has_time"
        ),
        sa.CheckConstraint(
            "leased_until IS NULL OR state = 'pending'", name="ck_notification_deliveries_only_pending_is_leased"
        ),
        sa.ForeignKeyConstraint(
            ["notification_id"], ["notifications.id"], name="fk_notification_deliveries_notification_id_notifications"
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["notification_endpoints.id"],
            name="fk_notification_deliveries_endpoint_id_notification_endpoints",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_notification_deliveries"),
        sa.UniqueConstraint(
            "notification_id", "endpoint_id", name="uq_notification_deliveries_notification_id_endpoint_id"
        ),
    )
    op.create_index(
        "ix_notification_deliveries_due",
        "notification_deliveries",
        ["next_attempt_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_notification_deliveries_of_endpoint",
        "notification_deliveries",
        ["endpoint_id", "next_attempt_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_notification_deliveries_leased",
        "notification_deliveries",
        ["endpoint_id"],
        postgresql_where=sa.text("leased_until IS NOT NULL"),
    )
    op.create_index("ix_notification_deliveries_tenant_id_id", "notification_deliveries", ["tenant_id", "id"])


def downgrade() -> None:
    op.drop_table("notification_deliveries")
    op.drop_table("notifications")
    op.drop_table("notification_endpoints")
