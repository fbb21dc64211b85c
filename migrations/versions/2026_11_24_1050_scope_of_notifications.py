"""Gives the scope notifications:write to the keys of tenants that had every scope before there was one for it.

Revision: 2026_11_24_1050, after 2026_11_24_1040.
"""

from alembic import op

revision = "2026_11_24_1050"
down_revision = "2026_11_24_1040"
branch_labels = None
depends_on = None

EVERY_SCOPE = "ARRAY['inference', 'adapters:read', 'adapters:write', 'usage:read', 'billing:read', 'keys:write']"


def upgrade() -> None:
    op.execute(
        "UPDATE api_keys SET scopes = ARRAY(SELECT unnest(scopes || 'notifications:write'::text) ORDER BY 1)"
        f" WHERE scopes @> {EVERY_SCOPE} AND NOT 'notifications:write' = ANY (scopes)"
    )


def downgrade() -> None:
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'notifications:write')")
