"""Adds the further names by which base models are known.

Revision: 2026_11_23_0910, after 2026_11_23_0900.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_23_0910"
down_revision = "2026_11_23_0900"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "base_model_names",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_base_model_names"),
        sa.ForeignKeyConstraint(["base_model"], ["base_models.id"], name="fk_base_model_names_base_model_base_models"),
    )
    op.create_index("ix_base_model_names_base_model", "base_model_names", ["base_model"])


def downgrade() -> None:
    op.drop_table("base_model_names")
