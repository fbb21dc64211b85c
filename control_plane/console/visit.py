"""A request of a browser: who sends it, what it may do, and the answers of the API that its page needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from litestar import Request
from litestar.datastructures import Cookie
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane import tenant_scope
from control_plane.api_keys import service as api_keys
from control_plane.auth.authenticate import Pepper, Principal
from control_plane.console.in_process_api import ApiAnswer, InProcessApi
from control_plane.dependencies import console_url
from control_plane.members import sessions
from control_plane.members.sessions import SignedIn
from control_plane.settings import ConsoleSettings
from core.api_keys import hash_key
from core.db import unit_of_work
from core.errors import Forbidden

_COOKIE: Final = "tenora_session"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
ADMIN: Final = "/api/v1/admin/"

HttpRequest = Request[Any, Any, Any]


class SignInNeeded(Exception):
    """The page is for people who are signed in. The handler leads to the sign-in."""


@dataclass(frozen=True, kw_only=True)
class Visits:
    """What all requests of browsers share: where sessions lie, and the console's address."""

    engine: Engine
    pepper: Pepper
    settings: ConsoleSettings
    api: InProcessApi

    def url(self, request: HttpRequest) -> str:
        """The address of the console without a slash at its end, with the path below which a proxy shows it."""
        return console_url(self.settings, request)

    def prefix(self) -> str:
        """The path below which a proxy shows the console; empty without one."""
        return urlsplit(self.settings.control_public_url or "").path.rstrip("/")

    def is_https(self, request: HttpRequest) -> bool:
        """Whether browsers reach the console by https."""
        return self.url(request).startswith("https://")

    def require_safe_transport(self, request: HttpRequest) -> None:
        """Passwords and sessions go over https, or stay on this machine. Raises Forbidden."""
        if not self.is_https(request) and urlsplit(self.url(request)).hostname not in _LOOPBACK:
            raise Forbidden(
                "The console is served over plain http to another machine. Put TLS in front of it, and set "
                "TENORA_CONTROL_PUBLIC_URL to its https address.",
                code="https_required",
            )

    def require_same_origin(self, request: HttpRequest) -> None:
        """Refuse a change that another site's page sends with the person's cookie. Raises Forbidden."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        parts = urlsplit(self.url(request))
        if site == "same-origin" or (site is None and origin == f"{parts.scheme}://{parts.netloc}"):
            return
        raise Forbidden(
            "This form was sent from another site. Open the console and send it there.", code="foreign_origin"
        )

    def cookie(self, request: HttpRequest, token: str) -> Cookie:
        """The cookie of a session. Over https its name binds it to this host, and no script reads it."""
        secure = self.is_https(request)
        return Cookie(
            key=self._cookie_name(request),
            value=token,
            path="/",
            secure=secure,
            httponly=True,
            samesite="lax",
            max_age=self.settings.console_session_s,
        )

    def end_cookie(self, request: HttpRequest) -> Cookie:
        """The cookie that removes the session's."""
        secure = self.is_https(request)
        return Cookie(key=self._cookie_name(request), value="", path="/", secure=secure, httponly=True, max_age=0)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction about people, who may belong to several tenants. Of a tenant, pages read only what the API
        shows.
        """
        with tenant_scope.every_tenant(), unit_of_work(self.engine) as session:
            yield session

    def find(self, request: HttpRequest) -> SignedIn | None:
        """The person of the request's cookie. Reads Postgres: call it in a thread."""
        token = request.cookies.get(self._cookie_name(request))
        if not token or len(token) > 100:
            return None
        with self.transaction() as session:
            return sessions.find(session, token, self.pepper.value, self.settings)

    def is_valid(self, session: Session, key: str) -> bool:
        """Whether an API key is known and not revoked."""
        return api_keys.find_principal(session, hash_key(key, self.pepper.value)) is not None

    def _cookie_name(self, request: HttpRequest) -> str:
        return f"__Host-{_COOKIE}" if self.is_https(request) else _COOKIE


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request of a person who is signed in."""

    visits: Visits
    request: HttpRequest
    person: SignedIn

    def principal(self, path: str) -> Principal:
        """The caller of an API path for this person. Raises Forbidden without a role there."""
        if path.startswith(ADMIN):
            found = self.person.platform_principal
            if found is None:
                raise Forbidden(
                    "This page is for people who run the platform, with a second factor."
                    if self.person.platform_role is None
                    else "Set up your second factor in Account first: people who run the platform need one.",
                    code="platform_role_required",
                )
            return found
        found = self.person.tenant_principal
        if found is None:
            raise Forbidden("You belong to no tenant. Ask for an invitation.", code="tenant_required")
        return found

    async def api(
        self, method: str, path: str, *, query: str = "", body: Any = None, content: bytes = b"", key: str = ""
    ) -> ApiAnswer:
        """Call the API as this person, with ``body`` as JSON or ``content`` as it is. ``key`` is the Idempotency-Key of
        a POST.
        """
        return await self.visits.api.call(
            self.request.scope,
            self.principal(path),
            method,
            path,
            query=query,
            body=content if body is None else msgspec.json.encode(body),
            headers={"idempotency-key": key} if key else None,
        )


def sign_in_path(request: HttpRequest) -> str:
    """The sign-in that leads back to this page afterwards."""
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/sign-in?next={quote(target, safe='')}" if target not in ("/", "") else "/sign-in"


def inside(path: str | None, otherwise: str = "/") -> str:
    """A path of the console to go to. Another site's address, which a form could smuggle in, becomes ``otherwise``."""
    if path and path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable():
        return path
    return otherwise
