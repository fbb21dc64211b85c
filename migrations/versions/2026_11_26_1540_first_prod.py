"""Keeps what adapters serve: every live adapter with a ready revision and no alias ``prod`` gets one for its newest.

From here on the first ready revision sets ``prod``, and a later one gets no calls of the bare name until it is moved.

Revision: 2026_11_26_1540, after 2026_11_26_1440.
"""

from alembic import op

revision = "2026_11_26_1540"
down_revision = "2026_11_26_1440"
branch_labels = None
depends_on = None

SET_PROD = """
WITH served AS (
    INSERT INTO aliases (adapter_id, name, tenant_id, weights, updated_at)
    SELECT a.id, 'prod', a.tenant_id, jsonb_build_object(max(r.id), 1), now()
    FROM adapters a JOIN revisions r ON r.tenant_id = a.tenant_id AND r.adapter_id = a.id
    WHERE a.deleted_at IS NULL AND r.status = 'ready'
    GROUP BY a.id
    ON CONFLICT DO NOTHING
    RETURNING adapter_id
)
INSERT INTO outbox (kind, field, created_at)
SELECT 'adapters', a.tenant_id || '/' || a.name, now() FROM served JOIN adapters a ON a.id = served.adapter_id
"""


def upgrade() -> None:
    op.execute(SET_PROD)


def downgrade() -> None:
    """The aliases stay: an older process serves them as if a tenant had set them."""
