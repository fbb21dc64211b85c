"""The frame around every page: navigation, tenant, notices and errors. Pages themselves are in ``page_routes``."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

import structlog
from litestar import Response
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException
from litestar.response import Redirect

from control_plane.console.api_routes import ApiRoutes
from control_plane.console.console_page import ConsolePage
from control_plane.console.pages import PAGES, PLAYGROUND
from control_plane.console.rendering import Renderer
from control_plane.console.visit import HttpRequest, SignInNeeded, Visits, sign_in_path
from control_plane.members.sessions import SignedIn
from core.errors import AppError, InvalidRequest

_NOTICE: Final = "tenora_notice"
_PREFERENCES: Final = {"theme": ("system", "light", "dark"), "shortcuts": ("on", "off")}
"""What a browser keeps in a cookie for a year: its values, the first of which holds without one."""
_FORM_FIELDS_MAX: Final = 500

Answer = Response[Any]
"""A page, a file or a redirection."""


@dataclass(frozen=True)
class RefusedForm:
    """A form that the API refused: the problem, what was typed, and the API path that the form calls."""

    status: int
    problem: Mapping[str, Any]
    typed: Mapping[str, list[str]]
    path: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Makes answers for browsers."""

    visits: Visits
    renderer: Renderer
    api_routes: ApiRoutes

    def page(self, request: HttpRequest, template: str, context: Mapping[str, Any], *, status: int = 200) -> Answer:
        """A page in the frame of the request's person, with the notice that the last form left."""
        person: SignedIn | None = request.scope["state"].get("person")
        notice = unquote(request.cookies.get(_NOTICE, ""))
        frame = {
            "person": person,
            "path": request.url.path,
            "notice": notice,
            "theme": _preference(request, "theme"),
            "shortcuts": _preference(request, "shortcuts") == "on",
            "navigation": self.navigation(person),
            "operations": self.api_routes.operations,
            "new_key": lambda: secrets.token_hex(16),
            "console_url": self.visits.url(request),
            "gateway_url": self.visits.settings.gateway_address,
            "request_id": request.scope["state"]["request_id"],
            "refusal": None,
            "query": dict(parse_qsl(request.url.query, keep_blank_values=True)),
        }
        answer: Answer = self.renderer.page(template, {**frame, **context}, status=status)
        if notice:
            answer.set_cookie(Cookie(key=_NOTICE, value="", path="/", max_age=0))
        return answer

    def redirect(self, path: str, *, notice: str = "") -> Answer:
        """Lead to a path of the console, whose page shows the notice once."""
        answer = Redirect(self.renderer.url(path), status_code=303)
        if notice:
            value = quote(notice[:400])
            answer.set_cookie(Cookie(key=_NOTICE, value=value, path="/", httponly=True, samesite="lax", max_age=60))
        return answer

    def prefer(self, name: str, value: str) -> Answer:
        """Keep a preference of this browser. Raises KeyError for one that does not exist."""
        answer = self.redirect("/account", notice=f"{name.capitalize()} changed.")
        kept = value if value in _PREFERENCES[name] else _PREFERENCES[name][0]
        cookie = Cookie(key=f"tenora_{name}", value=kept, path="/", httponly=True, samesite="lax", max_age=31_536_000)
        answer.set_cookie(cookie)
        return answer

    def problem(self, request: HttpRequest, status: int, problem: Mapping[str, Any]) -> Answer:
        """A page that says what went wrong, where, and what to do."""
        return self.page(request, "problem.html", {"status": status, "problem": problem}, status=status)

    def on_app_error(self, request: HttpRequest, error: AppError) -> Answer:
        """The page of an expected failure outside of a form."""
        problem = {"detail": error.message, "code": error.code, "param": error.param}
        answer = self.problem(request, error.status, problem)
        if error.retry_after_s is not None:
            answer.headers["retry-after"] = str(max(1, round(error.retry_after_s)))
        return answer

    def on_sign_in_needed(self, request: HttpRequest, _: SignInNeeded) -> Answer:
        """Lead to the sign-in, and back afterwards."""
        return self.redirect(sign_in_path(request) if request.method == "GET" else "/sign-in")

    def on_framework_error(self, request: HttpRequest, error: HTTPException) -> Answer:
        """The page of what Litestar refused: a wrong method, a large or malformed form."""
        if error.status_code >= 500:
            return self.on_unexpected(request, error)
        return self.problem(request, error.status_code, {"detail": error.detail, "code": "invalid_request"})

    def on_database_down(self, request: HttpRequest, _: Exception) -> Answer:
        """The page while Postgres does not answer: nothing can be shown, and nothing was changed."""
        detail = "The database does not answer. Nothing was changed. Try again in a few seconds."
        return self.problem(request, 503, {"detail": detail, "code": "unavailable"})

    def on_unexpected(self, request: HttpRequest, error: Exception) -> Answer:
        """The page of a defect: logged with its trace, shown without detail."""
        structlog.get_logger().error("unexpected error", path=request.url.path, exc_info=error)
        detail = "This is our fault. Quote the request id when you report it."
        return self.problem(request, 500, {"detail": detail, "code": "internal_error"})

    def navigation(self, person: SignedIn | None) -> list[tuple[str, list[ConsolePage]]]:
        """The pages that the person may open, by group."""
        if person is None:
            return []
        groups: dict[str, list[ConsolePage]] = {}
        tenant, platform = person.tenant_principal, person.platform_principal
        for page in (*PAGES, PLAYGROUND):
            if page.is_admin:
                allowed = platform is not None and person.viewing_until is None
            else:
                scope = page.scope or self.api_routes.scopes[page.reads[page.subject].partition("?")[0]]
                allowed = tenant is not None and (scope is None or scope in tenant.scopes)
            if page.group and allowed:
                groups.setdefault(page.group, []).append(page)
        return list(groups.items())


def _preference(request: HttpRequest, name: str) -> str:
    value = request.cookies.get(f"tenora_{name}", "")
    return value if value in _PREFERENCES[name] else _PREFERENCES[name][0]


async def form_fields_of(request: HttpRequest) -> list[tuple[str, str]]:
    """The fields of a form in their order. Raises InvalidRequest for too many, or for a file."""
    form = await request.form()
    pairs = list(form.multi_items())
    if len(pairs) > _FORM_FIELDS_MAX or not all(isinstance(value, str) for _, value in pairs):
        raise InvalidRequest(f"A form has at most {_FORM_FIELDS_MAX} fields and no files.", code="invalid_form")
    return [(str(name), value) for name, value in pairs]
