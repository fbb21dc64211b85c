"""The tables of the control plane: plans, tenants, API keys, adapters, revisions, outbox, audit and idempotent
responses.

Revision: 2026_11_20_0600, the first.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_20_0600"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_events_tenant_id", "audit_events", ["tenant_id"], unique=False)
    op.create_table(
        "base_models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hub_name", sa.Text(), nullable=False),
        sa.Column("context_tokens", sa.BigInteger(), nullable=False),
        sa.Column("vocab_size", sa.BigInteger(), nullable=False),
        sa.Column("tokenizer_sha256", sa.Text(), nullable=False),
        sa.Column("spec_zlib", sa.LargeBinary(), nullable=False),
        sa.Column("spec_sha256", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hub_name"),
    )
    op.create_table(
        "idempotent_responses",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.Text(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key"),
    )
    op.create_index("ix_idempotent_responses_created_at", "idempotent_responses", ["created_at"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "published_snapshot",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "plan_versions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("limits", postgresql.JSONB(), nullable=False),
        sa.Column("prices", postgresql.JSONB(), nullable=False),
        sa.Column("price_version_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number > 0", name="number_positive"),
        sa.ForeignKeyConstraint(
            ["plan_id"],
            ["plans.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("plan_id", "number"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("limit_overrides", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'suspended')", name="status_known"),
        sa.ForeignKeyConstraint(
            ["plan_id"],
            ["plans.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_tenants_plan_id", "tenants", ["plan_id"], unique=False)
    op.create_table(
        "adapters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["base_model"],
            ["base_models.id"],
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_adapters_base_model", "adapters", ["base_model"], unique=False)
    op.create_index(
        "uq_adapters_live_name",
        "adapters",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index("uq_adapters_tenant_id_id", "adapters", ["tenant_id", "id"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("redacted", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(tenant_id IS NULL) = (scopes = ARRAY['admin'])", name="admin_has_no_tenant"),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "revisions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("adapter_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("report", postgresql.JSONB(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("uploads_removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'ready') = (digest IS NOT NULL)", name="ready_has_digest"),
        sa.CheckConstraint("status IN ('uploading', 'validating', 'ready', 'rejected')", name="status_known"),
        sa.CheckConstraint("size_bytes > 0", name="size_positive"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "adapter_id"],
            ["adapters.tenant_id", "adapters.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_revisions_adapter", "revisions", ["tenant_id", "adapter_id", "id"], unique=False)
    op.create_index(
        "ix_revisions_uncleaned",
        "revisions",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("uploads_removed_at IS NULL"),
    )
    op.create_index(
        "ix_revisions_waiting",
        "revisions",
        ["status", "id"],
        unique=False,
        postgresql_where=sa.text("status IN ('uploading', 'validating')"),
    )
    op.create_table(
        "upload_files",
        sa.Column("revision_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.CheckConstraint("size_bytes > 0", name="size_positive"),
        sa.ForeignKeyConstraint(
            ["revision_id"],
            ["revisions.id"],
        ),
        sa.PrimaryKeyConstraint("revision_id", "path"),
    )
    op.execute(
        """
        CREATE FUNCTION control_plane_rows_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% rows are only ever added', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    for table in ("audit_events", "plan_versions"):
        op.execute(
            f"CREATE TRIGGER {table}_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION control_plane_rows_are_final()"
        )


def downgrade() -> None:
    for table in (
        "upload_files",
        "revisions",
        "api_keys",
        "adapters",
        "tenants",
        "plan_versions",
        "published_snapshot",
        "plans",
        "outbox",
        "idempotent_responses",
        "base_models",
        "audit_events",
    ):
        op.drop_table(table)
    op.execute("DROP FUNCTION control_plane_rows_are_final()")
