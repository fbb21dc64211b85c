"""Commands that wait until a person confirms their sign-in in the console.

Revision: 2026_11_29_1000, after 2026_11_29_0900.
"""

from alembic import op

revision = "2026_11_29_1000"
down_revision = "2026_11_29_0900"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE device_authorizations (
    device_hash text NOT NULL CONSTRAINT pk_device_authorizations PRIMARY KEY,
    code_hash text NOT NULL CONSTRAINT uq_device_authorizations_code_hash UNIQUE,
    label text NOT NULL,
    address text NOT NULL,
    tenant_id text CONSTRAINT fk_device_authorizations_tenant_id_tenants REFERENCES tenants (id),
    user_id text CONSTRAINT fk_device_authorizations_user_id_users REFERENCES users (id),
    polled_at timestamptz,
    confirmed_at timestamptz,
    expires_at timestamptz NOT NULL
);
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE device_authorizations")
