"""The OpenAPI document at ``/schema``: its title, the authentication, and the common format of errors."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from litestar import Litestar, MediaType, Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute
from litestar.types import Method

from control_plane.errors import PROBLEM_JSON, ApiProblem
from control_plane.openapi_document import completed
from control_plane.openapi_page import PlainPage

_STATUSES: Final = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)

_PROBLEMS: Final[Mapping[int, ResponseSpec]] = MappingProxyType(
    {
        status: ResponseSpec(
            data_container=ApiProblem,
            generate_examples=False,
            description=HTTPStatus(status).phrase,
            media_type=PROBLEM_JSON,
        )
        for status in _STATUSES
    }
)


class _Json(JsonRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, completed(openapi_schema, request.app))


class _Yaml(YamlRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, completed(openapi_schema, request.app))


def describe_api() -> OpenAPIConfig:
    """The document at ``/schema``, as JSON, at ``/schema/openapi.yaml``, and as a page at ``/schema/docs``."""
    return OpenAPIConfig(
        title="Tenora control plane",
        version=version("tenora"),
        description="Tenants, API keys, plans, adapters, usage and invoices. Errors are application/problem+json. "
        "The answer to a change waits until every live gateway acts by it, and has `acknowledged: true`. If one does "
        "not in time, the change stands, and the answer is 202 with `acknowledged: false` and a `poll_url`.",
        path="/schema",
        render_plugins=[
            _Json(path=["/", "/openapi.json"]),
            _Yaml(),
            PlainPage(path="/docs", media_type=MediaType.HTML),
        ],
        use_handler_docstrings=True,
        operation_id_creator=_operation_id,
        components=Components(
            security_schemes={
                "bearer": SecurityScheme(
                    type="http", scheme="bearer", description="An API key: tnr_live_… or tnr_admin_…."
                )
            }
        ),
        security=[{"bearer": []}],
    )


def describe_problems(app: Litestar) -> None:
    """Add the possible errors to every route of the API. Litestar itself would need them on each handler."""
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path.startswith(("/api/", "/v1/")):
            for handler in route.route_handlers:
                handler.responses = _PROBLEMS


def _operation_id(handler: HTTPRouteHandler, _method: Method, path: Sequence[object]) -> str:
    """The handler's name. Routes that tenants have and admins too have two ids, because ids are unique."""
    shared = "admin" in path and "scope" in handler.opt
    return f"{handler.handler_name}_as_admin" if shared else handler.handler_name
