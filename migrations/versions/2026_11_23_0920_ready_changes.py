"""Remembers the change that publishes a ready revision, until every gateway has acknowledged it.

Revision: 2026_11_23_0920, after 2026_11_23_0910.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_23_0920"
down_revision = "2026_11_23_0910"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Revisions that are ready now were published long ago.
    op.add_column("revisions", sa.Column("ready_change_id", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("revisions", "ready_change_id")
