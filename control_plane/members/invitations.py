"""Invitations: links that make their holder a member, or give a role of the platform. A link works once, for 72 hours.

The link alone admits its holder, so it is shown once and stored as a hash.
"""

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec
from sqlmodel import Session, col, select

from control_plane.audit import service as audit
from control_plane.members import people, sessions
from control_plane.members.models import Invitation, User
from control_plane.members.passwords import hash_password, is_password, require_good_password
from control_plane.members.roles import PLATFORM_ROLES
from control_plane.members.schemas import InvitationCreated, InvitationView
from control_plane.members.second_factor import turn_off
from control_plane.tenants import service as tenants
from core import clock
from core.api_keys import hash_key
from core.email_addresses import require_email
from core.errors import Conflict, InvalidRequest, NotFound, Unauthenticated
from core.struct_types import view_of

VALID: Final = timedelta(hours=72)
RECOVERY: Final = "recovery"
"""In place of a role: the link gives an existing account another password."""
_OPEN_MAX: Final = 100
_TOKEN_BYTES: Final = 32


def invite(
    session: Session,
    pepper: bytes,
    *,
    tenant_id: str | None,
    email: str | None,
    role: str,
    actor: str,
    console_url: str,
) -> InvitationCreated:
    """A new invitation: to a tenant, or without one to the platform. Raises InvalidRequest, NotFound or Conflict."""
    if email is not None:
        email = email.strip().lower()
        require_email(email, param="email")
    if tenant_id is not None:
        tenants.lock(session, tenant_id)
        if len(list_open(session, tenant_id)) >= _OPEN_MAX:
            raise Conflict(
                f"A tenant has at most {_OPEN_MAX} open invitations. Withdraw one.", code="too_many_invitations"
            )
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    row = Invitation(
        token_hash=hash_key(token, pepper),
        tenant_id=tenant_id,
        email=email,
        role=role,
        invited_by=actor,
        expires_at=clock.now() + VALID,
    )
    session.add(row)
    audit.record(
        session,
        actor=actor,
        action="invitation.created",
        target=row.id,
        tenant_id=tenant_id,
        details={"email": email, "role": role},
    )
    return view_of(row, InvitationCreated, link=f"{console_url}/invitations/{token}")


def recover(session: Session, pepper: bytes, user_id: str, *, actor: str, console_url: str) -> InvitationCreated:
    """A link with which a person who lost the password or the phone sets a new password. Raises NotFound."""
    user = session.get(User, user_id)
    if user is None:
        raise NotFound("There is no such person.", code="member_not_found")
    return invite(
        session, pepper, tenant_id=None, email=user.email, role=RECOVERY, actor=actor, console_url=console_url
    )


def without_link(created: InvitationCreated) -> InvitationCreated:
    """The response that is stored for an Idempotency-Key."""
    return msgspec.structs.replace(created, link=None)


def list_open(session: Session, tenant_id: str | None) -> Sequence[InvitationView]:
    """The invitations of a tenant, or of the platform, that can still be accepted, the newest first."""
    rows = select(Invitation).where(
        Invitation.tenant_id == tenant_id,
        col(Invitation.accepted_at).is_(None),
        col(Invitation.expires_at) > clock.now(),
    )
    return [view_of(row, InvitationView) for row in session.exec(rows.order_by(col(Invitation.id).desc()))]


def withdraw(session: Session, tenant_id: str | None, invitation_id: str, *, actor: str) -> None:
    """Make an open invitation's link useless. Raises NotFound."""
    mine = select(Invitation).where(Invitation.id == invitation_id, Invitation.tenant_id == tenant_id)
    row = session.exec(mine.with_for_update()).first()
    if row is None or row.accepted_at is not None:
        raise NotFound("There is no such open invitation.", code="invitation_not_found")
    session.delete(row)
    audit.record(session, actor=actor, action="invitation.withdrawn", target=invitation_id, tenant_id=tenant_id)


def find(session: Session, token: str, pepper: bytes, *, lock: bool = False) -> Invitation:
    """The invitation of a link that can be accepted. Raises NotFound, the same for used, old and unknown ones."""
    query = select(Invitation).where(
        Invitation.token_hash == hash_key(token, pepper),
        col(Invitation.accepted_at).is_(None),
        col(Invitation.expires_at) > clock.now(),
    )
    row = session.exec(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(
            "This invitation was used, has expired or was withdrawn. Ask for another link.", code="invitation_not_found"
        )
    return row


def accept(session: Session, token: str, pepper: bytes, *, email: str, name: str, password: str) -> User:
    """Make the person of the form a member, and use the invitation up. A person who has an account shows its password;
    for another one the account is made. Raises NotFound, InvalidRequest or Unauthenticated.
    """
    row = find(session, token, pepper, lock=True)
    email = row.email or email.strip().lower()
    require_email(email, param="email")
    user = session.exec(select(User).where(User.email == email).with_for_update()).first()
    if row.role == RECOVERY:
        assert user is not None, "accounts are never deleted"
        _recover(session, user, password)
        row.accepted_at = clock.now()
        return user
    if user is None:
        require_good_password(password, email=email)
        if not 1 <= len(name.strip()) <= 120 or not name.isprintable():
            raise InvalidRequest("name: write 1 to 120 characters on one line.", param="name")
        user = User(email=email, name=name.strip(), password_hash=hash_password(password))
        session.add(user)
        session.flush()
        audit.record(session, actor=user.id, action="user.created", target=user.id, details={"email": email})
    elif not is_password(password, user.password_hash):
        raise Unauthenticated(
            "password: you have an account with this e-mail address. Give its password.",
            code="sign_in_failed",
            param="password",
        )
    row.accepted_at = clock.now()
    if row.tenant_id is not None:
        people.join(session, row.tenant_id, user.id, row.role)
    else:
        assert row.role in PLATFORM_ROLES, "a constraint keeps it"
        user.platform_role = row.role
        sessions.end(session, user.id)
        audit.record(session, actor=user.id, action="user.promoted", target=user.id, details={"role": row.role})
    return user


def _recover(session: Session, user: User, password: str) -> None:
    """Set the password, turn the second factor off, and end all sessions."""
    require_good_password(password, email=user.email)
    user.password_hash = hash_password(password)
    turn_off(user)
    sessions.end(session, user.id)
    audit.record(session, actor=user.id, action="user.recovered", target=user.id)
