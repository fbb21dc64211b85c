"""Sessions of the console: started at sign-in, found by their cookie, ended by the person, by age or by a change of
role. Postgres has only the hash of a cookie.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, cast

from sqlalchemy import delete, or_
from sqlmodel import Session, col, select

from control_plane.auth.authenticate import ADMIN_PERSON, Principal
from control_plane.members.models import ConsoleSession, Membership, User
from control_plane.members.roles import SCOPES
from control_plane.settings import ConsoleSettings
from control_plane.tenants.models import Tenant
from core import clock
from core.api_keys import hash_key
from core.errors import NotFound

_TOUCH_EVERY: Final = timedelta(minutes=1)
VIEWING: Final = timedelta(minutes=15)
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class TenantOfPerson:
    """A tenant that a person belongs to, and the role there."""

    id: str
    name: str
    role: str
    status: Literal["active", "suspended"]


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """A person in a browser. ``tenant`` is the one whose pages it shows; with ``viewing_until`` it is another one's,
    for reading. ``confirmed`` means that the password was given a moment ago.
    """

    session_id: str
    user_id: str
    email: str
    name: str
    platform_role: str | None
    has_second_factor: bool
    confirmed: bool
    tenant: TenantOfPerson | None
    tenants: tuple[TenantOfPerson, ...]
    viewing_until: datetime | None

    @property
    def tenant_principal(self) -> Principal | None:
        """The caller of tenant routes; None for a person without a tenant."""
        if self.tenant is None:
            return None
        return Principal(
            key_id=self.user_id,
            tenant_id=self.tenant.id,
            scopes=SCOPES["owner" if self.viewing_until else self.tenant.role],
            tenant_status=self.tenant.status,
            read_only=self.viewing_until is not None,
        )

    @property
    def platform_principal(self) -> Principal | None:
        """The caller of admin routes; None for a person without a role of the platform or without a second factor."""
        if self.platform_role is None or not self.has_second_factor:
            return None
        return Principal(
            key_id=f"{ADMIN_PERSON}{self.user_id}",
            tenant_id=None,
            scopes=frozenset(),
            read_only=self.platform_role != "admin",
        )


def start(session: Session, user: User, pepper: bytes, *, browser: str, address: str) -> str:
    """A new session of this person. Returns the token for the cookie; the session shows the person's first tenant."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    first = select(Membership.tenant_id).where(Membership.user_id == user.id).order_by(col(Membership.created_at))
    row = ConsoleSession(
        token_hash=hash_key(token, pepper),
        user_id=user.id,
        tenant_id=session.exec(first.limit(1)).first(),
        browser=browser[:200],
        address=address,
    )
    session.add(row)
    return token


def find(session: Session, token: str, pepper: bytes, rules: ConsoleSettings) -> SignedIn | None:
    """The person of a cookie; None where the session is unknown, ended or too old."""
    now = clock.now()
    query = (
        select(ConsoleSession, User)
        .join(User, col(User.id) == col(ConsoleSession.user_id))
        .where(
            ConsoleSession.token_hash == hash_key(token, pepper),
            col(ConsoleSession.seen_at) > now - timedelta(seconds=rules.console_session_idle_s),
            col(ConsoleSession.created_at) > now - timedelta(seconds=rules.console_session_s),
        )
    )
    found = session.exec(query).first()
    if found is None:
        return None
    row, user = found
    if row.seen_at < now - _TOUCH_EVERY:
        row.seen_at = now
    tenants = _tenants_of(session, user.id)
    viewing_until = row.viewing_until if row.viewing_until and row.viewing_until > now and user.platform_role else None
    shown = next((each for each in tenants if each.id == row.tenant_id), None)
    if viewing_until:
        shown = _viewed(session, row.tenant_id)
    return SignedIn(
        session_id=row.id,
        user_id=user.id,
        email=user.email,
        name=user.name,
        platform_role=user.platform_role,
        has_second_factor=user.totp_sealed is not None,
        confirmed=row.confirmed_at > now - timedelta(seconds=rules.console_confirmed_s),
        tenant=shown or (tenants[0] if tenants else None),
        tenants=tenants,
        viewing_until=viewing_until,
    )


def own(session: Session, user_id: str) -> list[ConsoleSession]:
    """The sessions of a person, the newest first."""
    mine = select(ConsoleSession).where(ConsoleSession.user_id == user_id).order_by(col(ConsoleSession.id).desc())
    return list(session.exec(mine))


def change(session: Session, session_id: str) -> ConsoleSession:
    """The session's row, locked. Raises NotFound where it has ended."""
    query = select(ConsoleSession).where(ConsoleSession.id == session_id).with_for_update()
    row = session.exec(query).first()
    if row is None:
        raise NotFound("This session has ended. Sign in again.")
    return row


def end(session: Session, user_id: str, session_id: str | None = None, *, but: str | None = None) -> None:
    """End one session of a person, or all ``but`` one."""
    mine = delete(ConsoleSession).where(col(ConsoleSession.user_id) == user_id)
    if session_id is not None:
        mine = mine.where(col(ConsoleSession.id) == session_id)
    if but is not None:
        mine = mine.where(col(ConsoleSession.id) != but)
    session.execute(mine)


def remove_ended(session: Session, rules: ConsoleSettings) -> int:
    """Delete sessions that are too old to be found. Returns their number."""
    now = clock.now()
    old = or_(
        col(ConsoleSession.seen_at) <= now - timedelta(seconds=rules.console_session_idle_s),
        col(ConsoleSession.created_at) <= now - timedelta(seconds=rules.console_session_s),
    )
    return cast("int", session.execute(delete(ConsoleSession).where(old)).rowcount)  # type: ignore[attr-defined] # a DELETE's result has it


def _tenants_of(session: Session, user_id: str) -> tuple[TenantOfPerson, ...]:
    query = (
        select(Tenant, Membership.role)
        .join(Membership, col(Membership.tenant_id) == col(Tenant.id))
        .where(Membership.user_id == user_id)
        .order_by(col(Membership.created_at), col(Tenant.id))
    )
    return tuple(_shown(tenant, role) for tenant, role in session.exec(query))


def _viewed(session: Session, tenant_id: str | None) -> TenantOfPerson | None:
    tenant = session.exec(select(Tenant).where(Tenant.id == tenant_id)).first()
    return None if tenant is None else _shown(tenant, "viewer")


def _shown(tenant: Tenant, role: str) -> TenantOfPerson:
    status: Literal["active", "suspended"] = "active" if tenant.status == "active" else "suspended"
    return TenantOfPerson(id=tenant.id, name=tenant.name, role=role, status=status)
