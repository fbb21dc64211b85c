"""Routes of people: a tenant's members and invitations, and for admins those of a tenant and of the platform."""

from collections.abc import Callable
from typing import Final

import msgspec
from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.auth.authenticate import ADMIN_PERSON, Pepper, Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.members import invitations, people
from control_plane.members.invitation_mail import InvitationMail
from control_plane.members.schemas import (
    InvitationCreated,
    InvitationView,
    MemberPatch,
    MemberView,
    NewInvitation,
    NewPlatformInvitation,
    PlatformPerson,
)
from control_plane.paging import Page
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import Forbidden

_READ: Final = {"scope": "members:read", "while_suspended": True}
_WRITE: Final = {"scope": "members:write", "while_suspended": True}


class Members(Controller):
    """The people of the calling tenant. Keys have no scope for these routes: people call them in the console, and the
    API's document leaves them out.
    """

    path = "/members"
    include_in_schema = False

    @get(sync_to_thread=True, opt=_READ)
    def list_members(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> Page[MemberView]:
        """List the members with their roles."""
        with unit_of_work(engine) as session:
            return Page(data=people.list_members(session, principal.own_tenant_id))

    @patch("/{user_id:str}", sync_to_thread=True, opt=_WRITE)
    def change_member(
        self,
        user_id: FromPath[str],
        data: JSONBody[MemberPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> None:
        """Give a member another role. It signs in again."""
        with unit_of_work(engine) as session:
            people.change_role(session, principal.own_tenant_id, user_id, data.role, actor=principal.key_id)

    @delete("/{user_id:str}", sync_to_thread=True, opt=_WRITE)
    def remove_member(
        self, user_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Remove a member and end its sessions. Its keys stay: revoke those that only it knows."""
        with unit_of_work(engine) as session:
            people.remove(session, principal.own_tenant_id, user_id, actor=principal.key_id)


class Invitations(Controller):
    """The open invitations of the calling tenant, for people as ``Members``."""

    path = "/invitations"
    include_in_schema = False

    @get(sync_to_thread=True, opt=_READ)
    def list_invitations(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Page[InvitationView]:
        """List the invitations that can still be accepted, newest first."""
        with unit_of_work(engine) as session:
            return Page(data=invitations.list_open(session, principal.own_tenant_id))

    @post(sync_to_thread=True, opt=_WRITE)
    def invite_member(
        self,
        data: JSONBody[NewInvitation],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        console_url: NamedDependency[str],
        invitation_mail: NamedDependency[InvitationMail],
    ) -> Response[InvitationCreated]:
        """Invite a person. The link works once and for 72 hours. It goes by mail where a sender is set,
        and is in this response alone.
        """
        return _mailed(
            idempotent,
            invitation_mail,
            lambda session: _invite(session, principal.own_tenant_id, data, principal, pepper, console_url),
        )

    @delete("/{invitation_id:str}", sync_to_thread=True, opt=_WRITE)
    def withdraw_invitation(
        self, invitation_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Withdraw an invitation: its link no longer works."""
        with unit_of_work(engine) as session:
            invitations.withdraw(session, principal.own_tenant_id, invitation_id, actor=principal.key_id)


class AdminPeople(Controller):
    """Invitations by an admin: the first owner of a tenant, and the people who run the platform."""

    path = "/"
    tags = ("admin: people",)

    @get("/people", sync_to_thread=True)
    def list_people(self, engine: NamedDependency[Engine]) -> Page[PlatformPerson]:
        """List the people who run the platform."""
        with unit_of_work(engine) as session:
            return Page(data=people.list_platform_people(session))

    @delete("/people/{user_id:str}", sync_to_thread=True)
    def dismiss_person(
        self, user_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Take a person's role of the platform. Its sessions end; its memberships stay."""
        with unit_of_work(engine) as session:
            people.dismiss(session, user_id, actor=principal.key_id)

    @post("/people/{user_id:str}/recovery-links", sync_to_thread=True)
    def make_recovery_link(
        self,
        user_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        console_url: NamedDependency[str],
        invitation_mail: NamedDependency[InvitationMail],
    ) -> Response[InvitationCreated]:
        """Make a link for a person who lost the password or the phone. It sets another password, turns the second
        factor off and ends all sessions. It is in this response alone, works once, and for 72 hours.
        """
        return _mailed(
            idempotent,
            invitation_mail,
            lambda session: invitations.recover(
                session, pepper.value, user_id, actor=principal.key_id, console_url=console_url
            ),
        )

    @get("/tenants/{tenant_id:str}/members", sync_to_thread=True)
    def list_tenant_members(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Page[MemberView]:
        """List the members of a tenant with their roles."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return Page(data=people.list_members(session, tenant_id))

    @put("/tenants/{tenant_id:str}/members/self", sync_to_thread=True, include_in_schema=False)
    def join_tenant(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Become an owner of a tenant, as the person that calls in the console. Keys cannot call this."""
        user_id = principal.key_id.removeprefix(ADMIN_PERSON)
        if user_id == principal.key_id:
            raise Forbidden("Only a person in the console can join a tenant.", code="person_required")
        with unit_of_work(engine) as session:
            people.join(session, tenant_id, user_id, "owner")

    @post("/tenants/{tenant_id:str}/invitations", sync_to_thread=True)
    def invite_tenant_member(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewInvitation],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        console_url: NamedDependency[str],
        invitation_mail: NamedDependency[InvitationMail],
    ) -> Response[InvitationCreated]:
        """Invite a person to a tenant. The link works once and for 72 hours. It goes by mail where a sender is set,
        and is in this response alone.
        """
        return _mailed(
            idempotent,
            invitation_mail,
            lambda session: _invite(session, tenant_id, data, principal, pepper, console_url),
        )

    @post("/invitations", sync_to_thread=True)
    def invite_to_platform(
        self,
        data: JSONBody[NewPlatformInvitation],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        pepper: NamedDependency[Pepper],
        console_url: NamedDependency[str],
        invitation_mail: NamedDependency[InvitationMail],
    ) -> Response[InvitationCreated]:
        """Invite a person to run the platform. The link works once and for 72 hours. It goes by mail where a sender is
        set, and is in this response alone.
        """
        return _mailed(
            idempotent,
            invitation_mail,
            lambda session: _invite(session, None, data, principal, pepper, console_url),
        )


def _mailed(
    idempotent: IdempotentRequest, mail: InvitationMail, make: Callable[[Session], InvitationCreated]
) -> Response[InvitationCreated]:
    """The answer with a new link, which is sent by mail once the invitation is committed. A replay sends nothing."""
    answer = idempotent.run(make, stored=invitations.without_link)
    if isinstance(answer.content, InvitationCreated):
        answer.content = msgspec.structs.replace(answer.content, mailed=mail.send(answer.content))
    return answer


def _invite(
    session: Session,
    tenant_id: str | None,
    wanted: NewInvitation | NewPlatformInvitation,
    principal: Principal,
    pepper: Pepper,
    console_url: str,
) -> InvitationCreated:
    return invitations.invite(
        session,
        pepper.value,
        tenant_id=tenant_id,
        email=wanted.email,
        role=wanted.role,
        actor=principal.key_id,
        console_url=console_url,
    )
