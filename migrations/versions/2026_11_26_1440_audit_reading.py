"""Makes the audit trail readable: indexes for its filters, and the scope audit:read for the keys of tenants that have
every scope there was before it.

Revision: 2026_11_26_1440, after 2026_11_25_1500.
"""

from alembic import op

revision = "2026_11_26_1440"
down_revision = "2026_11_25_1500"
branch_labels = None
depends_on = None

FILTERS = ("tenant_id", "actor", "action", "target")
EVERY_SCOPE = (
    "ARRAY['inference', 'adapters:read', 'adapters:write', 'usage:read', 'billing:read', 'billing:write', 'keys:write',"
    " 'notifications:write']"
)


def upgrade() -> None:
    for column in FILTERS:
        op.create_index(f"ix_audit_events_{column}_id", "audit_events", [column, "id"])
    op.create_index("ix_audit_events_created_at", "audit_events", ["created_at"])
    op.drop_index("ix_audit_events_tenant_id", "audit_events")
    op.execute(
        "UPDATE api_keys SET scopes = ARRAY(SELECT unnest(scopes || 'audit:read'::text) ORDER BY 1)"
        f" WHERE scopes @> {EVERY_SCOPE} AND NOT 'audit:read' = ANY (scopes)"
    )


def downgrade() -> None:
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'audit:read')")
    op.create_index("ix_audit_events_tenant_id", "audit_events", ["tenant_id"])
    op.drop_index("ix_audit_events_created_at", "audit_events")
    for column in FILTERS:
        op.drop_index(f"ix_audit_events_{column}_id", "audit_events")
