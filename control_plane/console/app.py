"""Puts the console together: its routes, and the pages of what goes wrong in them."""

from collections.abc import Callable
from typing import Any

from litestar import Litestar, Response, Router, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ASGIApp
from sqlalchemy import exc as sql_errors

from control_plane.console.account_routes import AccountRoutes
from control_plane.console.api_routes import ApiRoutes
from control_plane.console.assets import Assets
from control_plane.console.form_routes import FormRoutes
from control_plane.console.frame import Answer, Frame
from control_plane.console.in_process_api import InProcessApi
from control_plane.console.page_routes import PageRoutes
from control_plane.console.playground import PlaygroundKeys
from control_plane.console.playground_routes import PlaygroundRoutes
from control_plane.console.rendering import Renderer
from control_plane.console.search_routes import SearchRoutes
from control_plane.console.sign_in_routes import SignInRoutes
from control_plane.console.visit import HttpRequest, SignInNeeded, Visits
from control_plane.dependencies import Resources
from control_plane.settings import ConsoleSettings
from core.errors import AppError


def console_router(
    settings: ConsoleSettings,
    resources: Resources,
    *,
    bucket_origin: str,
    app: Callable[[], Litestar],
    api: Callable[[], ASGIApp],
) -> Router:
    """All routes of the console, whose pages upload to ``bucket_origin``. ``app`` returns the application that it
    becomes part of, and ``api`` the same with the middleware that the console's own calls pass through.
    """
    visits = Visits(engine=resources.engine, pepper=resources.pepper, settings=settings, api=InProcessApi(api))
    assets = Assets()
    renderer = Renderer(assets, visits.prefix(), bucket_origin)
    frame = Frame(visits=visits, renderer=renderer, api_routes=ApiRoutes(app))
    pages = PageRoutes(frame=frame)

    @get("/assets/{name:str}", sync_to_thread=False)
    def asset(request: HttpRequest, name: FromPath[str]) -> Response[bytes]:
        return assets.answer(f"/assets/{name}", request.headers.get("accept-encoding", ""))

    return Router(
        path="/",
        route_handlers=[
            asset,
            *pages.handlers(),
            *FormRoutes(frame=frame, pages=pages).handlers(),
            *SignInRoutes(frame=frame).handlers(),
            *AccountRoutes(frame=frame, pages=pages).handlers(),
            *SearchRoutes(frame=frame, pages=pages).handlers(),
            *PlaygroundRoutes(frame=frame, pages=pages, keys=PlaygroundKeys(resources.pepper)).handlers(),
        ],
        exception_handlers={
            SignInNeeded: _function(frame.on_sign_in_needed),
            AppError: _function(frame.on_app_error),
            HTTPException: _function(frame.on_framework_error),
            sql_errors.OperationalError: _function(frame.on_database_down),
            sql_errors.TimeoutError: _function(frame.on_database_down),
            Exception: _function(frame.on_unexpected),
        },
        include_in_schema=False,
    )


def _function(method: Callable[[HttpRequest, Any], Answer]) -> Callable[[HttpRequest, Any], Answer]:
    """The method as a function: Litestar copies handlers deeply, with the objects that methods are bound to."""

    def handle(request: HttpRequest, error: Any) -> Answer:  # an exception of the handler's type
        return method(request, error)

    return handle
