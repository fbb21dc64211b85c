"""Sends a form to the API: its path and method are those of the route, its fields the body. What the API refuses shows
the form's page again, with what was typed; what it does leads to the next page, with a notice.

Fields that begin with an underscore are the console's own. Fails closed: a form from another site changes nothing, and
a change that matters asks for the password again.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from control_plane.console.form_body import body_of, typed
from control_plane.console.frame import Answer, Frame, RefusedForm, form_fields_of
from control_plane.console.page_routes import PageRoutes
from control_plane.console.pages import page_at
from control_plane.console.visit import HttpRequest, Visit, inside
from control_plane.members import sign_in
from core.errors import InvalidRequest, NotFound

_CHANGES: Final = ("POST", "PUT", "PATCH", "DELETE")
_MATTERS: Final = re.compile(
    r".*/(api-keys|invitations|recovery-links|members|setup|portal|top-ups|rotate|rotate-secret|void|write-off|close"
    r"|device-authorizations/[^/]+/confirm)"
)
"""Changes that ask for the password again, beside every deletion and every change of a member."""
_SCRIPTED: Final = re.compile(r"/api/v1/adapters(/[a-z0-9-]+/revisions(/rev_\w+/complete)?)?")
"""What the console's scripts call, with POST."""
_SHOWN_ONCE: Final = ("key", "secret", "link", "url")
"""Fields that only the first answer has, or that lead to a page at Stripe."""

_CHANGED_MEANWHILE: Final = {
    "detail": "Somebody changed this meanwhile. The page shows what holds now, and the form what you typed. Send it "
    "again to apply it.",
    "code": "changed_meanwhile",
}


@dataclass(frozen=True, kw_only=True)
class FormRoutes:
    """The route of all forms but those of sign-in and account."""

    frame: Frame
    pages: PageRoutes

    def handlers(self) -> list[HTTPRouteHandler]:
        """The route."""

        @post("/do/{path:path}", status_code=200)
        async def submit(request: HttpRequest, path: FromPath[str]) -> Response[Any]:
            self.frame.visits.require_same_origin(request)
            visit = await self.pages.visit(request)
            if request.content_type[0] == "application/json":
                return await self._pass_on(visit, path)
            return await self._submit(visit, path, await form_fields_of(request))

        return [submit]

    async def _pass_on(self, visit: Visit, path: str) -> Answer:
        """A call of the console's own scripts, which upload: the API's answer as it is."""
        request = visit.request
        if not _SCRIPTED.fullmatch(path):
            raise NotFound("Scripts of the console do not call this. Use an API key.")
        key = request.headers.get("idempotency-key", "")
        answer = await visit.api("POST", path, content=await request.body(), key=key)
        kept = {name: answer.headers[name] for name in ("idempotent-replayed",) if name in answer.headers}
        media_type = answer.headers.get("content-type", "application/json")
        return Response(answer.content, status_code=answer.status, media_type=media_type, headers=kept)

    async def _submit(self, visit: Visit, path: str, fields: list[tuple[str, str]]) -> Answer:
        own = {name: value for name, value in fields if name.startswith("_")}
        rest = [(name, value) for name, value in fields if not name.startswith("_")]
        method, back = own.get("_method", "POST"), inside(own.get("_back"))
        if not path.startswith(("/api/v1/", "/v1/batches/")) or method not in _CHANGES:
            raise NotFound("There is no such form. Reload the page.")
        matters = method == "DELETE" or "/members/" in path or _MATTERS.fullmatch(path)
        if matters and not visit.person.confirmed and not await self._confirm(visit, own.get("_password", "")):
            kept = [each for each in fields if each[0] != "_password"]
            context = {"action": f"/do{path}", "fields": kept, "back": back, "wrong": "_password" in own}
            return self.frame.page(visit.request, "confirm.html", context, status=403 if "_password" in own else 200)
        try:
            body: dict[str, Any] | None = body_of(rest)
        except InvalidRequest as error:
            problem = {"detail": error.message, "code": error.code, "param": error.param}
            return await self._refused(visit, back, RefusedForm(error.status, problem, typed(rest), path))
        if await self._has_changed(visit, back, own.get("_seen", "")):
            return await self._refused(visit, back, RefusedForm(409, _CHANGED_MEANWHILE, typed(rest), path))
        if method == "DELETE" and not body:
            body = None
        answer = await visit.api(method, path, body=body, key=own.get("_key", ""))
        if answer.problem is not None:
            return await self._refused(visit, back, RefusedForm(answer.status, answer.problem, typed(rest), path))
        made = answer.body
        if isinstance(made, dict) and any(made.get(name) for name in _SHOWN_ONCE):
            return self.frame.page(visit.request, "shown_once.html", {"made": made, "back": back})
        target = inside(own.get("_next"), back)
        if isinstance(made, dict) and isinstance(made.get("id"), str):
            target = target.replace("{id}", quote(made["id"], safe=""))
        return self.frame.redirect(target, notice=f"{own.get('_done') or 'Done.'} {_in_force(made)}")

    async def _has_changed(self, visit: Visit, back: str, seen: str) -> bool:
        """Whether a read of the form's page says something else now: ``seen`` is its name and its version then."""
        name, _, version = seen.partition(":")
        where, _, query = back.partition("?")
        if not version or (found := page_at(where)) is None:
            return False
        page, parameters = found
        if (read := page.reads_for(parameters, query).get(name)) is None:
            return False
        answer = await visit.api("GET", read[0], query=read[1])
        return answer.ok and answer.version != version

    async def _refused(self, visit: Visit, back: str, refusal: RefusedForm) -> Answer:
        """The form's page again, with what was typed and what is wrong."""
        where, _, query = back.partition("?")
        found = page_at(where)
        if found is None:
            return self.frame.problem(visit.request, refusal.status, refusal.problem)
        return await self.pages.show(visit, *found, query=query, refusal=refusal)

    async def _confirm(self, visit: Visit, password: str) -> bool:
        """Whether this is the person's password, after which changes need none for a while."""
        return bool(password) and await asyncio.to_thread(_is_password, visit, password)


def _is_password(visit: Visit, password: str) -> bool:
    person, visits = visit.person, visit.visits
    with visits.transaction() as session:
        return sign_in.confirm(session, person.session_id, person.user_id, password, visits.settings)


def _in_force(made: Any) -> str:  # a decoded answer
    """What the answer says of gateways, in words."""
    if not isinstance(made, dict) or "acknowledged" not in made:
        return ""
    if not made["acknowledged"]:
        return "Not every gateway has acknowledged it yet. It stands, and they follow."
    plural = "" if made["gateways"] == 1 else "s"
    return f"In force at {made['gateways']} gateway{plural} after {made['waited_ms'] / 1000:.2f} s."
