"""The routes of people who are not signed in: sign-in, sign-out, and accepting an invitation."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from sqlmodel import Session

from control_plane.console.frame import Answer, Frame, form_fields_of
from control_plane.console.visit import HttpRequest, Visits, inside
from control_plane.members import invitations, sessions, sign_in
from control_plane.members.models import User
from control_plane.members.second_factor import SecondFactors
from control_plane.tenants import service as tenants
from core.errors import AppError, Unauthenticated

_HASHES_AT_ONCE: Final = 4
"""Each hash of a password takes 19 MiB and a core for a moment; further ones wait."""


@dataclass(frozen=True, kw_only=True)
class SignInRoutes:
    """Sign-in and invitations. Passwords are never shown again after a refusal."""

    frame: Frame
    _hashing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HASHES_AT_ONCE))

    def handlers(self) -> list[HTTPRouteHandler]:
        """The routes."""

        @get("/sign-in")
        async def show_sign_in(request: HttpRequest) -> Response[Any]:
            self.frame.visits.require_safe_transport(request)
            if await asyncio.to_thread(self.frame.visits.find, request) is not None:
                return self.frame.redirect(inside(request.query_params.get("next")))
            return self._form(request, {"next": request.query_params.get("next", "")})

        @post("/sign-in", status_code=200)
        async def submit_sign_in(request: HttpRequest) -> Response[Any]:
            return await self._sign_in(request)

        @post("/sign-out", status_code=200)
        async def sign_out(request: HttpRequest) -> Response[Any]:
            return await self._sign_out(request)

        @get("/invitations/{token:str}")
        async def show_invitation(request: HttpRequest, token: FromPath[str]) -> Response[Any]:
            self.frame.visits.require_safe_transport(request)
            return await self._invitation(request, token, {})

        @post("/invitations/{token:str}", status_code=200)
        async def accept_invitation(request: HttpRequest, token: FromPath[str]) -> Response[Any]:
            return await self._accept(request, token)

        return [show_sign_in, submit_sign_in, sign_out, show_invitation, accept_invitation]

    def _form(self, request: HttpRequest, typed: dict[str, str], error: AppError | None = None) -> Answer:
        context = {"typed": typed, "error": error}
        return self.frame.page(request, "sign_in.html", context, status=error.status if error else 200)

    async def _sign_in(self, request: HttpRequest) -> Answer:
        visits = self.frame.visits
        visits.require_safe_transport(request)
        visits.require_same_origin(request)
        given = dict(await form_fields_of(request))
        try:
            async with self._hashing:
                token = await asyncio.to_thread(self._start, request, given)
        except AppError as error:
            return self._form(request, {"email": given.get("email", ""), "next": given.get("next", "")}, error)
        answer = self.frame.redirect(inside(given.get("next")))
        answer.set_cookie(visits.cookie(request, token))
        return answer

    def _start(self, request: HttpRequest, given: dict[str, str]) -> str:
        """A new session. A failure is counted in a transaction of its own."""
        visits, email = self.frame.visits, given.get("email", "").strip().lower()[:254]
        with visits.transaction() as session:
            sign_in.check_tries(session, [email], visits.settings)
        try:
            with visits.transaction() as session:
                user = sign_in.sign_in(
                    session,
                    SecondFactors(visits.pepper),
                    email=email,
                    password=given.get("password", ""),
                    code=given.get("code", ""),
                    address=address_of(request),
                )
                return self._session(session, user, request)
        except Unauthenticated:
            with visits.transaction() as session:
                sign_in.count_failure(session, [email], visits.settings)
            raise

    def _session(self, session: Session, user: User, request: HttpRequest) -> str:
        """A new session of this browser. Returns the cookie's token."""
        browser, pepper = request.headers.get("user-agent", ""), self.frame.visits.pepper.value
        return sessions.start(session, user, pepper, browser=browser, address=address_of(request))

    async def _sign_out(self, request: HttpRequest) -> Answer:
        visits = self.frame.visits
        visits.require_same_origin(request)
        person = await asyncio.to_thread(visits.find, request)
        if person is not None:
            await asyncio.to_thread(_end, visits, person.user_id, person.session_id)
        answer = self.frame.redirect("/sign-in", notice="You are signed out.")
        answer.set_cookie(visits.end_cookie(request))
        return answer

    async def _invitation(
        self, request: HttpRequest, token: str, typed: dict[str, str], error: AppError | None = None
    ) -> Answer:
        context = await asyncio.to_thread(self._invited, token)
        context |= {"typed": typed, "error": error, "token": token}
        return self.frame.page(request, "invitation.html", context, status=error.status if error else 200)

    def _invited(self, token: str) -> dict[str, Any]:
        """The person, role and tenant of an invitation. Raises NotFound."""
        with self.frame.visits.transaction() as session:
            found = invitations.find(session, token, self.frame.visits.pepper.value)
            tenant = None if found.tenant_id is None else tenants.get(session, found.tenant_id).name
            return {"email": found.email, "role": found.role, "tenant": tenant}

    async def _accept(self, request: HttpRequest, token: str) -> Answer:
        visits = self.frame.visits
        visits.require_safe_transport(request)
        visits.require_same_origin(request)
        given = dict(await form_fields_of(request))
        try:
            async with self._hashing:
                session_token, is_platform = await asyncio.to_thread(self._join, request, token, given)
        except AppError as error:
            if error.code == "invitation_not_found":
                raise
            kept = {name: given.get(name, "") for name in ("email", "name")}
            return await self._invitation(request, token, kept, error)
        if not session_token:
            return self.frame.redirect("/sign-in", notice="Accepted. Sign in with your second factor.")
        goto, notice = ("/account", "Welcome. Set up your second factor next.") if is_platform else ("/", "Welcome.")
        answer = self.frame.redirect(goto, notice=notice)
        answer.set_cookie(visits.cookie(request, session_token))
        return answer

    def _join(self, request: HttpRequest, token: str, given: dict[str, str]) -> tuple[str, bool]:
        """A session of the new member, and whether it has a role of the platform; no session for a person with a second
        factor. Wrong passwords count as failures.
        """
        visits = self.frame.visits
        with visits.transaction() as session:
            invited = invitations.find(session, token, visits.pepper.value).email
            email = (invited or given.get("email", "").strip().lower())[:254]
            sign_in.check_tries(session, [email], visits.settings)
        try:
            with visits.transaction() as session:
                user = invitations.accept(
                    session,
                    token,
                    visits.pepper.value,
                    email=email,
                    name=given.get("name", ""),
                    password=given.get("password", ""),
                )
                if user.totp_sealed is not None:  # the link and the password do not replace the second factor
                    return "", False
                return self._session(session, user, request), user.platform_role is not None
        except Unauthenticated:
            with visits.transaction() as session:
                sign_in.count_failure(session, [email], visits.settings)
            raise


def address_of(request: HttpRequest) -> str:
    """The IP address that the request came from; behind a proxy, the proxy's."""
    return request.client.host if request.client else ""


def _end(visits: Visits, user_id: str, session_id: str) -> None:
    with visits.transaction() as session:
        sessions.end(session, user_id, session_id)
