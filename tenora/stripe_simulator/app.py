"""Builds the simulator's HTTP server: Stripe's API, the owner's page, and the simulator's own operations."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from litestar import Litestar, Request, Response, post, route
from litestar.di import Provide
from litestar.exceptions import HTTPException

from tenora.stripe_simulator import checkout, page, webhooks
from tenora.stripe_simulator.api import ApiRequest, StripeApi
from tenora.stripe_simulator.control import CONTROLS
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import find
from tenora.stripe_simulator.parameters import read_parameters
from tenora.stripe_simulator.simulation import Simulation
from tenora.stripe_simulator.store import SimulatorStore
from tenora.stripe_simulator.webhooks import EventDelivery

BODY_BYTES_MAX: Final = 1_000_000
_TICK_S: Final = 1
_log = structlog.get_logger()
_LABELLED: Final = {"Tenora-Stripe-Simulator": "1"}


@route("/v1/{path:path}", http_method=["GET", "POST", "DELETE"])
async def call_api(request: Request[Any, Any, Any], api: StripeApi) -> Response[dict[str, Any]]:
    """Every call of Stripe's API."""
    encoded = await request.body() if request.method == "POST" else request.scope["query_string"]
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


@route("/_simulator/{path:path}", http_method=["GET", "POST", "DELETE"])
async def call_control(request: Request[Any, Any, Any], sim: Simulation) -> Response[dict[str, Any]]:
    """Every operation of the simulator's own, but the one that sends."""
    operation, ids = find(CONTROLS, request.method, request.scope["path"])
    try:
        body = msgspec.json.decode(await request.body() or b"{}")
    except msgspec.DecodeError as error:
        raise ApiError(f"the body is no JSON: {error}") from error
    given = read_parameters(body, operation.parameters)
    return Response(sim.run(lambda sim: operation.run(sim, given, *ids)), status_code=200)


@post("/_simulator/delivery/send", status_code=200)
async def send_waiting(delivery: EventDelivery) -> dict[str, int]:
    """Post everything that waits, also while delivery is paused; the answer comes when it is posted."""
    return {"accepted": await delivery.send_due(all_waiting=True)}


def _refused(_: Request[Any, Any, Any], error: ApiError | HTTPException) -> Response[dict[str, Any]]:
    refusal = error if isinstance(error, ApiError) else ApiError(error.detail, status=error.status_code)
    return Response(refusal.body, status_code=refusal.status, headers=_LABELLED)


def build_app(home: Path, base_url: str, *, listener: tuple[str, str] | None = None) -> Litestar:
    """The server over one folder of state; ``listener`` is a URL for events and its secret. Raises AlreadyRunning."""
    store = SimulatorStore(home)
    if listener is not None:
        webhooks.listen(store, listener[0], [listener[1]])
    api, delivery = StripeApi(store, base_url), EventDelivery(store)

    @contextlib.asynccontextmanager
    async def in_the_background(_: Litestar) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(delivery.run()), asyncio.create_task(_tick(store, base_url))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            store.close()

    return Litestar(
        route_handlers=[call_api, call_control, send_waiting, page.show, page.use],
        dependencies={
            "api": Provide(lambda: api, sync_to_thread=False),
            "delivery": Provide(lambda: delivery, sync_to_thread=False),
            "sim": Provide(lambda: Simulation(store, base_url), sync_to_thread=False),
        },
        lifespan=[in_the_background],
        exception_handlers={ApiError: _refused, HTTPException: _refused},
        response_headers=_LABELLED,
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
    )


async def _tick(store: SimulatorStore, base_url: str) -> None:
    """Let sessions expire as real time passes."""
    while True:
        try:
            Simulation(store, base_url).run(checkout.expire_due)
        except Exception:  # noqa: BLE001 - one object that fails must not stop time for all others
            _log.exception("what is due could not be done")
        await asyncio.sleep(_TICK_S)
