"""The routes of pages: each reads the API for everything that it shows, at once. Files go through ``/raw``."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from control_plane.console.console_page import ConsolePage
from control_plane.console.frame import Answer, Frame, RefusedForm
from control_plane.console.in_process_api import ApiAnswer
from control_plane.console.pages import PAGES
from control_plane.console.visit import HttpRequest, SignInNeeded, Visit

_ROLE_LACKS: Final = frozenset({"scope_missing", "admin_key_required", "tenant_key_required"})


@dataclass(frozen=True, kw_only=True)
class PageRoutes:
    """All pages of ``pages.PAGES``."""

    frame: Frame

    def handlers(self) -> list[HTTPRouteHandler]:
        """A route for each page, and the one of files."""

        @get("/raw/{path:path}")
        async def raw(request: HttpRequest, path: FromPath[str]) -> Response[Any]:
            return await self._raw(request, path)

        return [raw, *map(self._handler, PAGES)]

    def _handler(self, page: ConsolePage) -> HTTPRouteHandler:
        async def show(request: HttpRequest) -> Response[Any]:
            visit = await self.visit(request)
            if page.path == "/" and visit.person.tenant is None and visit.person.platform_role is not None:
                return self.frame.redirect("/admin" if visit.person.platform_principal else "/account")
            parameters = {name: str(value) for name, value in request.path_params.items()}
            return await self.show(visit, page, parameters, query=request.url.query)

        return get(re.sub(r"{(\w+)}", r"{\1:str}", page.path), name=f"page {page.path}")(show)

    async def visit(self, request: HttpRequest) -> Visit:
        """The person of the request. Raises SignInNeeded, TooManyRequests or Unavailable."""
        person = await asyncio.to_thread(self.frame.visits.find, request)
        if person is None:
            raise SignInNeeded
        state = request.scope["state"]
        state["person"] = person
        is_admin = request.url.path.startswith(("/admin", "/do/api/v1/admin", "/raw/api/v1/admin"))
        state["slot"].authenticated(None if is_admin or person.tenant is None else person.tenant.id)
        return Visit(visits=self.frame.visits, request=request, person=person)

    async def show(
        self,
        visit: Visit,
        page: ConsolePage,
        parameters: Mapping[str, str],
        *,
        query: str,
        refusal: RefusedForm | None = None,
    ) -> Answer:
        """A page; with ``refusal`` what was typed into its form stays, beside what is wrong."""
        reads = page.reads_for(parameters, query)
        answers = await asyncio.gather(*(visit.api("GET", path, query=own) for path, own in reads.values()))
        found: dict[str, ApiAnswer] = dict(zip(reads, answers, strict=True))
        subject = found[page.subject]
        if subject.problem is not None:
            return self.frame.problem(visit.request, subject.status, _for_people(subject.problem))
        versions = {name: answer.version for name, answer in found.items()}
        context: dict[str, Any] = {
            "page": page,
            "path": page.path_for(parameters),  # a refused form was sent to another one
            "reads": reads,
            "versions": versions,
            "parameters": parameters,
            "refusal": refusal,
            **found,
        }
        return self.frame.page(visit.request, page.template, context, status=refusal.status if refusal else 200)

    async def _raw(self, request: HttpRequest, path: str) -> Answer:
        """A document of the API as a file, such as an invoice's PDF."""
        visit = await self.visit(request)
        answer = await visit.api("GET", path, query=request.url.query)
        if answer.problem is not None:
            return self.frame.problem(request, answer.status, answer.problem)
        headers = {
            "content-disposition": answer.headers.get("content-disposition", "attachment"),
            "content-security-policy": "default-src 'none'; sandbox",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        media_type = answer.headers.get("content-type", "application/octet-stream")
        return Response(answer.content, media_type=media_type, headers=headers)


def _for_people(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """The problem in words for a person, who has a role where a key has scopes."""
    if problem["code"] in _ROLE_LACKS:
        return {
            **problem,
            "detail": "Your role does not include this page. An owner of the tenant can change it in Team.",
        }
    return problem
