"""The playground's page: a form that is answered whole, or by a script as one stream of all panes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from control_plane.console.frame import Answer, Frame, form_fields_of
from control_plane.console.page_routes import PageRoutes
from control_plane.console.playground import KEY_LIMITS, MODELS_MAX, Pane, PlaygroundKeys, answers, body_of
from control_plane.console.visit import HttpRequest, Visit
from core.errors import AppError, Forbidden, InvalidRequest, Unavailable


@dataclass(frozen=True, kw_only=True)
class PlaygroundRoutes:
    """The playground, for people whose role may call models."""

    frame: Frame
    pages: PageRoutes
    keys: PlaygroundKeys

    def handlers(self) -> list[HTTPRouteHandler]:
        """The routes."""

        @get("/playground")
        async def show_playground(request: HttpRequest) -> Response[Any]:
            return await self._show(await self._visit(request), {}, ())

        @post("/playground", status_code=200)
        async def run_playground(request: HttpRequest) -> Response[Any]:
            self.frame.visits.require_same_origin(request)
            return await self._run(await self._visit(request), await form_fields_of(request))

        return [show_playground, run_playground]

    async def _visit(self, request: HttpRequest) -> Visit:
        visit = await self.pages.visit(request)
        if "inference" not in visit.principal("/api/v1/").scopes:
            raise Forbidden("Your role does not call models. An owner of the tenant can change it in Team.")
        return visit

    async def _show(
        self, visit: Visit, form: dict[str, str], panes: Sequence[Pane], error: AppError | None = None
    ) -> Answer:
        adapters, base_models = await asyncio.gather(
            visit.api("GET", "/api/v1/adapters", query="limit=100"),
            visit.api("GET", "/api/v1/base-models", query="limit=100"),
        )
        models = [each["id"] for each in base_models.body["data"]] if base_models.ok else []
        models += [each["name"] for each in adapters.body["data"] if each["newest_ready"]] if adapters.ok else []
        context = {"models": models, "form": form, "panes": panes, "error": error, "models_max": MODELS_MAX}
        return self.frame.page(visit.request, "playground.html", context, status=error.status if error else 200)

    async def _run(self, visit: Visit, fields: list[tuple[str, str]]) -> Answer:
        form = dict(fields)
        models = [value for name, value in sorted(fields) if name.startswith("model") and value.strip()]
        wants_stream = visit.request.headers.get("accept") == "application/x-ndjson"
        url = self.frame.visits.settings.gateway_url
        try:
            if url is None:
                raise Unavailable("The playground is off. An operator sets TENORA_GATEWAY_URL.", code="playground_off")
            if not 1 <= len(models) <= MODELS_MAX:
                raise InvalidRequest(f"model: choose one to {MODELS_MAX} models.", param="model")
            bodies = [body_of(model, form) for model in models]
            secret = await self._secret(visit)
        except AppError as error:
            if wants_stream:
                raise
            return await self._show(visit, form, (), error)
        if wants_stream:
            return Stream(_lines(answers(url, secret, bodies)), media_type="application/x-ndjson")
        found = {number: pane async for number, pane in answers(url, secret, bodies)}
        return await self._show(visit, form, [found[number] for number in sorted(found)])

    async def _secret(self, visit: Visit) -> str:
        """The secret of the member's key. A missing or revoked one is made again, as the person."""
        principal = visit.principal("/api/v1/")
        tenant_id, user_id = principal.own_tenant_id, principal.key_id
        secret = await asyncio.to_thread(self._find, tenant_id, user_id)
        if secret is not None:
            return secret
        body = {"name": f"Playground of {visit.person.name}"[:120], "scopes": ["inference"], "limits": KEY_LIMITS}
        made = await visit.api("POST", "/api/v1/api-keys", body=body)
        if made.problem is not None:
            raise Unavailable(f"The playground has no key: {made.problem['detail']}", code=made.problem["code"])
        await asyncio.to_thread(self._keep, tenant_id, user_id, made.body["key"])
        return str(made.body["key"])

    def _find(self, tenant_id: str, user_id: str) -> str | None:
        """The stored secret; None where there is none, or where its key was revoked."""
        with self.frame.visits.transaction() as session:
            secret = self.keys.find(session, tenant_id, user_id)
            return secret if secret is not None and self.frame.visits.is_valid(session, secret) else None

    def _keep(self, tenant_id: str, user_id: str, secret: str) -> None:
        with self.frame.visits.transaction() as session:
            self.keys.keep(session, tenant_id, user_id, secret)


async def _lines(changes: AsyncIterator[tuple[int, Pane]]) -> AsyncIterator[bytes]:
    """One JSON object a line: the number of a pane and the pane as it stands."""
    async for number, pane in changes:
        shown = {"pane": number, **asdict(pane), "tokens_per_s": pane.tokens_per_s}
        yield msgspec.json.encode(shown) + b"\n"
