"""Who belongs to a tenant, and in which role. A tenant always keeps an owner."""

from collections.abc import Sequence
from typing import Final

from sqlmodel import Session, col, func, select

from control_plane.audit import service as audit
from control_plane.members import sessions
from control_plane.members.models import ConsoleSession, Membership, User
from control_plane.members.schemas import MemberView, PlatformPerson
from control_plane.tenants import service as tenants
from core.errors import Conflict, NotFound
from core.struct_types import view_of

_MEMBERS_MAX: Final = 1000


def list_members(session: Session, tenant_id: str) -> Sequence[MemberView]:
    """The members of a tenant, the oldest first."""
    seen = (
        select(func.max(ConsoleSession.seen_at))
        .where(col(ConsoleSession.user_id) == col(User.id))
        .correlate(User)
        .scalar_subquery()
    )
    query = (
        select(User, Membership, seen)
        .join(Membership, col(Membership.user_id) == col(User.id))
        .where(Membership.tenant_id == tenant_id)
        .order_by(col(Membership.created_at), col(User.id))
        .limit(_MEMBERS_MAX)
    )
    return [
        view_of(
            user,
            MemberView,
            role=member.role,
            has_second_factor=user.totp_sealed is not None,
            last_seen_at=seen_at,
            created_at=member.created_at,
        )
        for user, member, seen_at in session.exec(query)
    ]


def list_platform_people(session: Session) -> Sequence[PlatformPerson]:
    """The people who run the platform, the oldest first."""
    query = select(User).where(col(User.platform_role).is_not(None)).order_by(col(User.id)).limit(_MEMBERS_MAX)
    return [
        view_of(user, PlatformPerson, role=user.platform_role, has_second_factor=user.totp_sealed is not None)
        for user in session.exec(query)
    ]


def dismiss(session: Session, user_id: str, *, actor: str) -> None:
    """Take a person's role of the platform and end its sessions. Raises NotFound."""
    user = session.exec(select(User).where(User.id == user_id).with_for_update()).first()
    if user is None or user.platform_role is None:
        raise NotFound("No such person runs the platform.", code="member_not_found")
    user.platform_role = None
    sessions.end(session, user_id)
    audit.record(session, actor=actor, action="user.dismissed", target=user_id)


def change_role(session: Session, tenant_id: str, user_id: str, role: str, *, actor: str) -> None:
    """Give a member another role and end its sessions. Raises NotFound, and Conflict for the last owner."""
    member = _locked(session, tenant_id, user_id)
    if member.role == role:
        return
    if member.role == "owner":
        _require_another_owner(session, tenant_id, user_id)
    member.role = role
    sessions.end(session, user_id)
    audit.record(
        session, actor=actor, action="member.changed", target=user_id, tenant_id=tenant_id, details={"role": role}
    )


def remove(session: Session, tenant_id: str, user_id: str, *, actor: str) -> None:
    """Remove a member and end its sessions. Its keys stay. Raises NotFound, and Conflict for the last owner."""
    member = _locked(session, tenant_id, user_id)
    if member.role == "owner":
        _require_another_owner(session, tenant_id, user_id)
    sessions.end(session, user_id)  # first: without the membership, the tenant sees them no longer
    session.delete(member)
    audit.record(session, actor=actor, action="member.removed", target=user_id, tenant_id=tenant_id)


def join(session: Session, tenant_id: str, user_id: str, role: str) -> None:
    """Make a person a member. A member keeps the role that it has. Raises NotFound without the tenant."""
    tenants.lock(session, tenant_id)
    if session.get(Membership, (tenant_id, user_id)) is None:
        session.add(Membership(tenant_id=tenant_id, user_id=user_id, role=role))
        audit.record(
            session, actor=user_id, action="member.joined", target=user_id, tenant_id=tenant_id, details={"role": role}
        )


def _locked(session: Session, tenant_id: str, user_id: str) -> Membership:
    """The membership, under the lock of the tenant, so that no two requests remove the last two owners."""
    tenants.lock(session, tenant_id)
    member = session.get(Membership, (tenant_id, user_id))
    if member is None:
        raise NotFound("This tenant has no such member.", code="member_not_found")
    return member


def _require_another_owner(session: Session, tenant_id: str, user_id: str) -> None:
    owners = select(func.count()).where(
        Membership.tenant_id == tenant_id, Membership.role == "owner", Membership.user_id != user_id
    )
    if not session.exec(owners).one():
        raise Conflict(
            "role: a tenant keeps at least one owner. Make another member an owner first.", code="last_owner"
        )
