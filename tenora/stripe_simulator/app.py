"""Builds the simulator's HTTP server: Stripe's API, the owner's pages, and the control routes beside them."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import structlog
from litestar import Litestar, Request, Response, Router, route
from litestar.di import Provide
from litestar.exceptions import HTTPException

from tenora.stripe_simulator import control, pages, test_clocks, webhooks
from tenora.stripe_simulator.api import ApiRequest, StripeApi
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import operations
from tenora.stripe_simulator.simulation import EVENTS_KEPT_S, Simulation
from tenora.stripe_simulator.store import SimulatorStore
from tenora.stripe_simulator.webhooks import EventDelivery

BODY_BYTES_MAX: Final = 1_000_000
_TICK_S: Final = 1
_log = structlog.get_logger()
_LABELLED: Final = {"Tenora-Stripe-Simulator": "1"}


@route("/v1/{path:path}", http_method=["GET", "POST", "DELETE"])
async def call_api(request: Request[Any, Any, Any], api: StripeApi) -> Response[dict[str, Any]]:
    """Every call of Stripe's API."""
    in_body = request.method == "POST"
    encoded = await request.body() if in_body else request.scope["query_string"]
    answer = await api.answer(
        ApiRequest(
            method=request.method,
            path=request.scope["path"],
            encoded=encoded.decode(errors="replace"),
            headers={name.lower(): value for name, value in request.headers.items()},
            request_id=f"req_{secrets.token_hex(7)}",
        )
    )
    return Response(answer.body, status_code=answer.status, headers=answer.headers)


def _refused(_: Request[Any, Any, Any], error: ApiError) -> Response[dict[str, Any]]:
    return Response(error.body, status_code=error.status, headers=_LABELLED)


def _http_refused(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    body = {"error": {"type": "invalid_request_error", "message": error.detail}}
    return Response(body, status_code=error.status_code, headers=_LABELLED)


def build_app(home: Path, base_url: str, *, listener: tuple[str, str] | None = None) -> Litestar:
    """The server over one folder of state; ``listener`` is a URL for events and its secret. Raises AlreadyRunning."""
    store = SimulatorStore(home)
    store.forget_events(before=Simulation(store, base_url).now() - EVENTS_KEPT_S)
    if listener is not None:
        webhooks.listen(store, listener[0], [listener[1]])
    api = StripeApi(store, operations(), base_url)

    @contextlib.asynccontextmanager
    async def in_the_background(app: Litestar) -> AsyncIterator[None]:
        delivery = EventDelivery(store)
        app.state.control = control.Control(store, base_url, delivery)
        tasks = [asyncio.create_task(delivery.run()), asyncio.create_task(_tick(store, base_url))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            store.close()

    def control_of(request: Request[Any, Any, Any]) -> control.Control:
        found: control.Control = request.app.state.control
        return found

    return Litestar(
        route_handlers=[call_api, *pages.ROUTES, Router("/_simulator", route_handlers=list(control.ROUTES))],
        dependencies={
            "api": Provide(lambda: api, sync_to_thread=False),
            "control": Provide(control_of, sync_to_thread=False),
        },
        lifespan=[in_the_background],
        exception_handlers={ApiError: _refused, HTTPException: _http_refused},
        response_headers=_LABELLED,
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
    )


async def _tick(store: SimulatorStore, base_url: str) -> None:
    """Let things become due as real time passes."""
    while True:
        try:
            with store.transaction():
                test_clocks.make_due(Simulation(store, base_url))
        except Exception:  # noqa: BLE001 - one object that fails must not stop time for all others
            _log.exception("what is due could not be done")
        await asyncio.sleep(_TICK_S)
