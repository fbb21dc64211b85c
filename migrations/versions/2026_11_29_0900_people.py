"""People of the console: users, their roles at tenants, invitations, sessions and failed sign-ins.

Revision: 2026_11_29_0900, after 2026_11_26_2100.
"""

from alembic import op

revision = "2026_11_29_0900"
down_revision = "2026_11_26_2100"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE users (
    id text NOT NULL CONSTRAINT pk_users PRIMARY KEY,
    email text NOT NULL CONSTRAINT uq_users_email UNIQUE,
    name text NOT NULL,
    password_hash text NOT NULL,
    totp_sealed bytea,
    totp_step bigint NOT NULL,
    recovery_hashes text[] NOT NULL,
    platform_role text,
    created_at timestamptz NOT NULL,
    CONSTRAINT ck_users_platform_role_known CHECK (platform_role IN ('admin', 'support'))
);

CREATE TABLE memberships (
    tenant_id text NOT NULL CONSTRAINT fk_memberships_tenant_id_tenants REFERENCES tenants (id),
    user_id text NOT NULL CONSTRAINT fk_memberships_user_id_users REFERENCES users (id),
    role text NOT NULL,
    playground_sealed bytea,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_memberships PRIMARY KEY (tenant_id, user_id),
    CONSTRAINT ck_memberships_role_known CHECK (role IN ('owner', 'developer', 'billing', 'viewer'))
);
CREATE INDEX ix_memberships_user_id ON memberships (user_id);

CREATE TABLE invitations (
    id text NOT NULL CONSTRAINT pk_invitations PRIMARY KEY,
    token_hash text NOT NULL CONSTRAINT uq_invitations_token_hash UNIQUE,
    tenant_id text CONSTRAINT fk_invitations_tenant_id_tenants REFERENCES tenants (id),
    email text,
    role text NOT NULL,
    invited_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    accepted_at timestamptz
);
CREATE INDEX ix_invitations_tenant_id_id ON invitations (tenant_id, id);

CREATE TABLE console_sessions (
    id text NOT NULL CONSTRAINT pk_console_sessions PRIMARY KEY,
    token_hash text NOT NULL CONSTRAINT uq_console_sessions_token_hash UNIQUE,
    user_id text NOT NULL CONSTRAINT fk_console_sessions_user_id_users REFERENCES users (id) ON DELETE CASCADE,
    tenant_id text CONSTRAINT fk_console_sessions_tenant_id_tenants REFERENCES tenants (id),
    viewing_until timestamptz,
    browser text NOT NULL,
    address text NOT NULL,
    created_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    confirmed_at timestamptz NOT NULL
);
CREATE INDEX ix_console_sessions_user_id ON console_sessions (user_id);

CREATE TABLE sign_in_tries (
    subject text NOT NULL CONSTRAINT pk_sign_in_tries PRIMARY KEY,
    failures bigint NOT NULL,
    since timestamptz NOT NULL
);
CREATE INDEX ix_sign_in_tries_since ON sign_in_tries (since);
"""


def upgrade() -> None:
    op.execute(TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE sign_in_tries, console_sessions, invitations, memberships, users")
