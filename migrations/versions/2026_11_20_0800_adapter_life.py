"""The life cycle of an adapter: multipart uploads, canary runs, aliases, rank classes, pins and revocations.

Revision: 2026_11_20_0800, after 2026_11_20_0610.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2026_11_20_0800"
down_revision = "2026_11_20_0610"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("adapters", sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.alter_column("adapters", "pinned", server_default=None)
    op.add_column("revisions", sa.Column("checked_digest", sa.Text()))
    op.execute("UPDATE revisions SET checked_digest = digest WHERE digest IS NOT NULL")
    op.create_index("ix_revisions_checked_digest", "revisions", ["checked_digest"])
    op.add_column("revisions", sa.Column("rank", sa.Integer()))
    op.add_column("revisions", sa.Column("rank_class", sa.Integer()))
    op.add_column("revisions", sa.Column("canary", JSONB()))
    op.add_column("revisions", sa.Column("canary_attempts", sa.Integer(), nullable=False, server_default="0"))
    op.alter_column("revisions", "canary_attempts", server_default=None)
    op.add_column("revisions", sa.Column("canary_asked_at", INSTANT))
    op.add_column("revisions", sa.Column("stored_removed_at", INSTANT))
    op.add_column("upload_files", sa.Column("s3_upload_id", sa.Text()))
    op.add_column("upload_files", sa.Column("part_bytes", sa.BigInteger()))
    op.create_table(
        "aliases",
        sa.Column("adapter_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("weights", JSONB(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("adapter_id", "name", name="pk_aliases"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"], name="fk_aliases_tenant_id_adapters"
        ),
    )
    op.create_table(
        "adapter_revocations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("adapter_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("engine_names", JSONB(), nullable=False),
        sa.Column("receipts", JSONB(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("unloaded_at", INSTANT),
        sa.Column("removed_at", INSTANT),
        sa.Column("forgotten_at", INSTANT),
        sa.Column("lifted_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_adapter_revocations"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "adapter_id"],
            ["adapters.tenant_id", "adapters.id"],
            name="fk_adapter_revocations_tenant_id_adapters",
        ),
        sa.CheckConstraint("reason IN ('deleted', 'suspended')", name="reason_known"),
    )
    op.create_index(
        "ix_adapter_revocations_open",
        "adapter_revocations",
        ["id"],
        postgresql_where=sa.text("forgotten_at IS NULL AND lifted_at IS NULL"),
    )
    op.create_index("ix_adapter_revocations_adapter", "adapter_revocations", ["adapter_id"])


def downgrade() -> None:
    op.drop_table("adapter_revocations")
    op.drop_table("aliases")
    for column in ("part_bytes", "s3_upload_id"):
        op.drop_column("upload_files", column)
    op.drop_index("ix_revisions_checked_digest", table_name="revisions")
    for column in (
        "stored_removed_at",
        "canary_asked_at",
        "canary_attempts",
        "canary",
        "rank_class",
        "rank",
        "checked_digest",
    ):
        op.drop_column("revisions", column)
    op.drop_column("adapters", "pinned")
