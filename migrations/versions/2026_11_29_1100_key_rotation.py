"""API keys: an end, the models that may be called, and the secret before a rotation.

Revision: 2026_11_29_1100, after 2026_11_29_1000.
"""

from alembic import op

revision = "2026_11_29_1100"
down_revision = "2026_11_29_1000"
branch_labels = None
depends_on = None


COLUMNS = """
ALTER TABLE api_keys
    ADD models text[],
    ADD expires_at timestamptz,
    ADD previous_hash text CONSTRAINT uq_api_keys_previous_hash UNIQUE,
    ADD previous_ends_at timestamptz,
    ADD CONSTRAINT ck_api_keys_previous_ends CHECK ((previous_hash IS NULL) = (previous_ends_at IS NULL))
"""


def upgrade() -> None:
    op.execute(COLUMNS)


def downgrade() -> None:
    op.execute("ALTER TABLE api_keys DROP models, DROP expires_at, DROP previous_hash, DROP previous_ends_at")
