"""Tables of the members room: people, their roles at tenants, invitations, the console's sessions, failed sign-ins, and
commands that wait for a person.

Secrets are stored as hashes, except for the secret of the second factor, which is sealed.
"""

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, DateTime, Index, LargeBinary, Text
from sqlmodel import Field, SQLModel

from control_plane.members.roles import PLATFORM_ROLES, TENANT_ROLES
from core import clock
from core.ids import new_id

_TENANT_ROLE = f"role IN {TENANT_ROLES!r}"
_PLATFORM_ROLE = f"platform_role IN {PLATFORM_ROLES!r}"


class User(SQLModel, table=True):
    """One person. ``email`` is in lower case. ``totp_step`` is the time step of the last code, which counts once."""

    __tablename__ = "users"
    __table_args__ = (CheckConstraint(_PLATFORM_ROLE, name="platform_role_known"),)

    id: str = Field(default_factory=lambda: new_id("usr"), primary_key=True, sa_type=Text)
    email: str = Field(unique=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    password_hash: str = Field(sa_type=Text)
    totp_sealed: bytes | None = Field(default=None, sa_type=LargeBinary)
    totp_step: int = Field(default=0, sa_type=BigInteger)
    recovery_hashes: list[str] = Field(default_factory=list, sa_type=ARRAY(Text))
    platform_role: str | None = Field(default=None, sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class Membership(SQLModel, table=True):
    """The role of a person at a tenant. ``playground_sealed`` is the secret of the key that the person's playground
    calls with.
    """

    __tablename__ = "memberships"
    __table_args__ = (CheckConstraint(_TENANT_ROLE, name="role_known"), Index("ix_memberships_user_id", "user_id"))

    tenant_id: str = Field(primary_key=True, foreign_key="tenants.id", sa_type=Text)
    user_id: str = Field(primary_key=True, foreign_key="users.id", sa_type=Text)
    role: str = Field(sa_type=Text)
    playground_sealed: bytes | None = Field(default=None, sa_type=LargeBinary)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class Invitation(SQLModel, table=True):
    """A link that makes its holder a member, once. Without ``tenant_id`` it gives a role of the platform. Without
    ``email`` the person chooses it.
    """

    __tablename__ = "invitations"
    __table_args__ = (Index("ix_invitations_tenant_id_id", "tenant_id", "id"),)

    id: str = Field(default_factory=lambda: new_id("ivt"), primary_key=True, sa_type=Text)
    token_hash: str = Field(unique=True, sa_type=Text)
    tenant_id: str | None = Field(default=None, foreign_key="tenants.id", sa_type=Text)
    email: str | None = Field(default=None, sa_type=Text)
    role: str = Field(sa_type=Text)
    invited_by: str = Field(sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))
    accepted_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))


class ConsoleSession(SQLModel, table=True):
    """One signed-in browser. ``tenant_id`` is the tenant whose pages it shows. ``confirmed_at`` is when the password
    was last given. Until ``viewing_until`` a person of the platform sees that tenant's pages and changes nothing.
    """

    __tablename__ = "console_sessions"
    __table_args__ = (Index("ix_console_sessions_user_id", "user_id"),)

    id: str = Field(default_factory=lambda: new_id("ses"), primary_key=True, sa_type=Text)
    token_hash: str = Field(unique=True, sa_type=Text)
    user_id: str = Field(foreign_key="users.id", ondelete="CASCADE", sa_type=Text)
    tenant_id: str | None = Field(default=None, foreign_key="tenants.id", sa_type=Text)
    viewing_until: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    browser: str = Field(sa_type=Text)
    address: str = Field(sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    seen_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    confirmed_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class DeviceAuthorization(SQLModel, table=True):
    """A command that waits for a person to confirm its sign-in. ``tenant_id`` and ``user_id`` are those of the person
    who typed its code.
    """

    __tablename__ = "device_authorizations"

    device_hash: str = Field(primary_key=True, sa_type=Text, description="Of the secret that the command polls with.")
    code_hash: str = Field(unique=True, sa_type=Text, description="Of the code that the person types.")
    label: str = Field(sa_type=Text)
    address: str = Field(sa_type=Text)
    tenant_id: str | None = Field(default=None, foreign_key="tenants.id", sa_type=Text)
    user_id: str | None = Field(default=None, foreign_key="users.id", sa_type=Text)
    polled_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    confirmed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))


class SignInTries(SQLModel, table=True):
    """Failed sign-ins of one e-mail address, or wrong codes of commands that one person typed, since ``since``."""

    __tablename__ = "sign_in_tries"

    subject: str = Field(primary_key=True, sa_type=Text)
    failures: int = Field(sa_type=BigInteger)
    since: datetime = Field(default_factory=clock.now, index=True, sa_type=DateTime(timezone=True))
