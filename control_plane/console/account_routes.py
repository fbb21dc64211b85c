"""The routes of a person's own account: password, second factor, sessions, theme and shortcuts, and which tenant
is shown.

These belong to a person and not to a tenant, so the API has no routes for them.
"""

import asyncio
import binascii
import re
from base64 import b32decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from markupsafe import Markup
from sqlmodel import Session, select

from control_plane.audit import service as audit
from control_plane.auth.authenticate import ADMIN_PERSON
from control_plane.console.frame import Answer, Frame, form_fields_of
from control_plane.console.page_routes import PageRoutes
from control_plane.console.visit import HttpRequest, Visit
from control_plane.members import sessions, sign_in
from control_plane.members.models import User
from control_plane.members.passwords import hash_password, is_password, require_good_password
from control_plane.members.second_factor import SecondFactors, new_totp_secret, totp_uri, turn_off
from control_plane.tenants import service as tenants
from core import clock
from core.errors import AppError, Forbidden, InvalidRequest, NotFound, Unauthenticated

Form = Mapping[str, str]
_SECRET: Final = re.compile("[A-Z2-7]{32}")


@dataclass(frozen=True, kw_only=True)
class AccountRoutes:
    """The account page and its forms."""

    frame: Frame
    pages: PageRoutes

    def handlers(self) -> list[HTTPRouteHandler]:
        """The routes."""

        @get("/account")
        async def account(request: HttpRequest) -> Response[Any]:
            return await self._show(await self.pages.visit(request))

        @post("/account/{change:str}", status_code=200)
        async def change_account(request: HttpRequest, change: FromPath[str]) -> Response[Any]:
            self.frame.visits.require_same_origin(request)
            visit = await self.pages.visit(request)
            return await self._change(visit, change, dict(await form_fields_of(request)))

        return [account, change_account]

    async def _show(self, visit: Visit, error: AppError | None = None, secret: str = "") -> Answer:
        own = await asyncio.to_thread(self._own_sessions, visit.person.user_id)
        secret = secret or new_totp_secret()
        uri = totp_uri(secret, visit.person.email)
        context = {"own_sessions": own, "secret": secret, "uri": uri, "qr": qr_code(uri), "error": error}
        return self.frame.page(visit.request, "account.html", context, status=error.status if error else 200)

    def _own_sessions(self, user_id: str) -> list[Any]:
        with self.frame.visits.transaction() as session:
            return list(sessions.own(session, user_id))

    async def _change(self, visit: Visit, change: str, form: Form) -> Answer:
        if change in ("theme", "shortcuts"):
            return self.frame.prefer(change, form.get(change, ""))
        do = _CHANGES.get(change)
        if do is None:
            raise NotFound("There is no such form. Reload the page.")
        try:
            done = await asyncio.to_thread(self._do, do, visit, form)
        except AppError as error:
            return await self._show(visit, error, form.get("secret", ""))
        if isinstance(done, list):
            return self.frame.page(visit.request, "recovery_codes.html", {"codes": done})
        goto, notice = done
        return self.frame.redirect(goto, notice=notice)

    def _do(self, do: "_Change", visit: Visit, form: Form) -> "_Done":
        visits, person = self.frame.visits, visit.person
        try:
            with visits.transaction() as session:
                sign_in.check_tries(session, [person.email], visits.settings)
                locked = select(User).where(User.id == person.user_id).with_for_update()
                return do(session, session.exec(locked).one(), visit, form)
        except Unauthenticated:  # counted in a transaction of its own, since this one is rolled back
            with visits.transaction() as session:
                sign_in.count_failure(session, [person.email], visits.settings)
            raise


_Done = tuple[str, str] | list[str]
"""Where to go and what to say, or recovery codes to show."""
_Change = Callable[[Session, User, Visit, Form], _Done]


def _set_password(session: Session, user: User, visit: Visit, form: Form) -> _Done:
    _require_password(user, form)
    require_good_password(form.get("new_password", ""), email=user.email)
    user.password_hash = hash_password(form["new_password"])
    sessions.end(session, user.id, but=visit.person.session_id)
    audit.record(session, actor=user.id, action="user.password_changed", target=user.id)
    return "/account", "Password changed. All other sessions have ended."


def _turn_on(session: Session, user: User, visit: Visit, form: Form) -> _Done:
    _require_password(user, form)
    secret = form.get("secret", "")
    try:
        known = bool(_SECRET.fullmatch(secret)) and len(b32decode(secret)) == 20
    except binascii.Error:
        known = False
    codes = SecondFactors(visit.visits.pepper).turn_on(user, secret, form.get("code", "")) if known else None
    if codes is None:
        raise InvalidRequest(
            "code: this is not the code that the app shows now. Check the clock of your phone.",
            code="wrong_code",
            param="code",
        )
    sessions.end(session, user.id, but=visit.person.session_id)
    audit.record(session, actor=user.id, action="user.second_factor_on", target=user.id)
    return codes


def _turn_off(session: Session, user: User, _: Visit, form: Form) -> _Done:
    _require_password(user, form)
    turn_off(user)
    audit.record(session, actor=user.id, action="user.second_factor_off", target=user.id)
    return "/account", "The second factor is off."


def _end_session(session: Session, user: User, visit: Visit, form: Form) -> _Done:
    if "session" in form:
        sessions.end(session, user.id, form["session"])
        return "/account", "The session has ended."
    sessions.end(session, user.id, but=visit.person.session_id)
    return "/account", "All other sessions have ended."


def _show_tenant(session: Session, _: User, visit: Visit, form: Form) -> _Done:
    wanted = form.get("tenant", "")
    if wanted not in {each.id for each in visit.person.tenants}:
        raise NotFound("You belong to no such tenant.", code="tenant_not_found")
    row = sessions.change(session, visit.person.session_id)
    row.tenant_id, row.viewing_until = wanted, None
    return "/", ""


def _view_as(session: Session, user: User, visit: Visit, form: Form) -> _Done:
    if visit.person.platform_principal is None:
        raise Forbidden("Only people who run the platform view a tenant's pages.", code="platform_role_required")
    tenant = tenants.get(session, form.get("tenant", ""))
    row = sessions.change(session, visit.person.session_id)
    row.tenant_id, row.viewing_until = tenant.id, clock.now() + sessions.VIEWING
    audit.record(
        session, actor=f"{ADMIN_PERSON}{user.id}", action="tenant.viewed", target=tenant.id, tenant_id=tenant.id
    )
    return "/", ""


def _end_view(session: Session, user: User, visit: Visit, _: Form) -> _Done:
    row = sessions.change(session, visit.person.session_id)
    viewed = row.tenant_id
    row.tenant_id, row.viewing_until = None, None
    if viewed is not None:
        audit.record(
            session, actor=f"{ADMIN_PERSON}{user.id}", action="tenant.view_ended", target=viewed, tenant_id=viewed
        )
    return f"/admin/tenants/{viewed}" if viewed else "/admin", ""


_CHANGES: Final[Mapping[str, _Change]] = MappingProxyType(
    {
        "password": _set_password,
        "second-factor": _turn_on,
        "second-factor-off": _turn_off,
        "end-session": _end_session,
        "tenant": _show_tenant,
        "view-as": _view_as,
        "end-view": _end_view,
    }
)


def _require_password(user: User, form: Form) -> None:
    if not is_password(form.get("password", ""), user.password_hash):
        raise Unauthenticated("password: this is not your password.", code="sign_in_failed", param="password")


def qr_code(text: str) -> Markup:
    """A QR code as SVG."""
    from reportlab.graphics.barcode.qrencoder import QRCode, QRErrorCorrectLevel  # a web process rarely draws one

    code: Any = QRCode(None, QRErrorCorrectLevel.M)  # reportlab ships no types
    code.addData(text)
    code.make()
    size = code.getModuleCount()
    dark = "".join(f"M{x} {y}h1v1h-1z" for y in range(size) for x in range(size) if code.isDark(y, x))
    return Markup(
        '<svg class="qr" viewBox="-4 -4 {0} {0}" role="img" aria-label="QR code"><path d="{1}"/></svg>'
    ).format(size + 8, dark)
